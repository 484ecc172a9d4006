"""Masks that cannot be computed end their request, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from support.grammars import byte_engine_plan, choice
from support.late_masks import (
    LETTERS,
    SLOW,
    ask,
    made,
    played,
)

from penstock.engine.loader import EnginePlan
from penstock.grammar import matcher
from penstock.grammar.consume import Consumer, Consumers
from penstock.interface.mask import TokenMask
from penstock.interface.messages import FinishReason


@pytest.fixture(scope="module")
def engine_plan(tmp_path_factory: pytest.TempPathFactory) -> EnginePlan:
    return byte_engine_plan(tmp_path_factory.mktemp("bytes"))


def test_a_grammar_beyond_its_budget_is_ended_alone(
    engine_plan: EnginePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        (0, ask("free", max_tokens=12, ignore_eos=True, seed=1)),
        (0, ask("slow", grammar=LETTERS, seed=1)),
    ]
    expected = played(made(engine_plan, None), requests)
    warm = made(engine_plan, None)
    warm.add_request(ask("compiled", grammar=LETTERS, max_tokens=1))
    while warm.has_work:
        warm.step()
    monkeypatch.setattr(matcher, "ALLOWANCE_SECONDS", 0.0)
    monkeypatch.setattr(matcher, "SECONDS_PER_TOKEN", 0.0)
    stories = played(warm, requests)
    end = stories["slow", 0][2]
    assert end.finish_reason is FinishReason.ERROR
    assert end.refused
    assert "less ambiguous" in str(end.error)
    assert "on average" in str(end.error)
    assert stories["free", 0][0] == expected["free", 0][0]


class Panic(BaseException):
    """A panic of a library in Rust is such an exception."""


def test_whatever_goes_wrong_in_a_mask_ends_its_request_alone(
    engine_plan: EnginePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        (0, ask("free", max_tokens=12, ignore_eos=True, seed=1)),
        (0, ask("bad", grammar=LETTERS, seed=1)),
        (0, ask("good", grammar=choice("ab").spec, seed=1)),
    ]
    expected = played(made(engine_plan, None), requests)
    fill, compute = matcher.Matcher._fill, matcher.Matcher.compute

    def panics(self: matcher.Matcher, row: TokenMask, mask: TokenMask) -> None:
        if len(self._taken) == 3:
            raise Panic("index out of bounds")
        fill(self, row, mask)

    def fails(self: matcher.Matcher, *consume: Consumer) -> None:
        if len(self._taken) == 3:
            raise ZeroDivisionError("index out of bounds")
        compute(self, *consume)

    def no_threads(self: Consumers, tokenizer: object) -> NoReturn:
        raise Panic("index out of bounds")

    defects: list[tuple[type, str, object, int]] = [
        (matcher.Matcher, "_fill", panics, 3),
        (matcher.Matcher, "compute", fails, 3),
        (Consumers, "of_thread", no_threads, 1),
    ]
    for kind, name, defect, tokens in defects:
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, defect)
            if kind is Consumers:
                patch.setattr(matcher, "SLOW_SECONDS", SLOW)
            stories = played(made(engine_plan, None), requests)
        text, _, end = stories["bad", 0]
        assert text == expected["bad", 0][0][:tokens]
        assert end.finish_reason is FinishReason.ERROR
        assert "index out of bounds" in str(end.error)
        assert stories["free", 0][0] == expected["free", 0][0]
        if kind is not Consumers:
            assert stories["good", 0][0] == expected["good", 0][0]


def test_what_a_request_asks_for_and_cannot_have_is_its_own_fault(
    engine_plan: EnginePlan, tmp_path: Path
) -> None:
    stuck = {"grammar": choice("ab").spec, "min_tokens": 3, "stop_token_ids": (ord("b"),)}
    stories = played(
        made(engine_plan, None),
        [(0, ask("stuck", n=2, **stuck)), (0, ask("fine", max_tokens=2, ignore_eos=True))],
    )
    for index in range(2):
        end = stories["stuck", index][2]
        assert end.finish_reason is FinishReason.ERROR
        assert end.refused
    assert not stories["fine", 0][2].refused
