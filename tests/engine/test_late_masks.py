"""Masks that are late: who waits for them, who does not, and what comes out."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drafted import Fickle
from support.grammars import FINITE, PADDED, byte_blueprint, choice, regex
from support.oracle import Oracle, Recorder, Texts
from support.overlap_executor import Deferred, HashExecutor

from penstock.engine.core import EngineCore
from penstock.engine.loader import Blueprint
from penstock.engine.masks import MaskJob, MaskThreads
from penstock.grammar import matcher
from penstock.grammar.consume import Consumer, Consumers
from penstock.interface.executor import Executor
from penstock.interface.mask import TokenMask
from penstock.interface.messages import EngineRequest, FinishReason, SequenceUpdate
from penstock.sampling.params import SamplingParams
from penstock.speculate.speculation import Speculation

LETTERS = regex("[a-z]{30}").spec


@pytest.fixture(scope="module")
def blueprint(tmp_path_factory: pytest.TempPathFactory) -> Blueprint:
    return byte_blueprint(tmp_path_factory.mktemp("bytes"))


class Held:
    """Computes nothing before it is told to."""

    def __init__(self) -> None:
        self.jobs: list[MaskJob] = []
        self.idle_waits = 0

    def begin(self, jobs: Iterable[tuple[str, MaskJob]]) -> None:
        self.jobs += [job for _, job in jobs]

    def wait(self, jobs: Seq[MaskJob], seconds: float, *, all_of_them: bool) -> None:
        assert jobs
        assert not all(job.done for job in jobs)
        self.idle_waits += not all_of_them

    def let_go(self) -> None:
        for job in self.jobs:
            job.run()
        self.jobs.clear()

    def close(self) -> None: ...


class Late(Held):
    """Each mask is as late as chance has it, in any order."""

    def __init__(self, seed: int, often: float) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._often = often
        self.late = 0

    def wait(self, jobs: Seq[MaskJob], seconds: float, *, all_of_them: bool) -> None:
        super().wait(jobs, seconds, all_of_them=all_of_them)
        if not all_of_them:
            self._some(1.0 - self._often)
            return
        self._some(1.0 - self._often)
        self.late += sum(not job.done for job in jobs)

    def begin(self, jobs: Iterable[tuple[str, MaskJob]]) -> None:
        self._some((1.0 - self._often) / 4)
        super().begin(jobs)

    def _some(self, share: float) -> None:
        done = [job for job in self.jobs if self._random.random() < share]
        for job in done:
            job.run()
        self.jobs = [job for job in self.jobs if not job.done]


def made(
    blueprint: Blueprint,
    threads: MaskThreads | None,
    executor: Executor | None = None,
    speculation: Speculation | None = None,
    **limits: int,
) -> EngineCore:
    config = msgspec.structs.replace(blueprint.config, **limits)
    return EngineCore(
        dataclasses.replace(blueprint, config=config),
        executor or HashExecutor(200, PADDED),
        speculation,
        threads,
    )


def ask(name: str, prompt: bytes = b"a prompt", **params: object) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_token_ids=list(prompt),
        params=SamplingParams(**params),  # type: ignore[arg-type]
    )


Stories = dict[tuple[str, int], tuple[list[int], list[object], SequenceUpdate]]
"""Tokens, log-probabilities and the end of each."""


def played(
    core: EngineCore,
    arrivals: Seq[tuple[int, EngineRequest]],
    aborts: dict[int, str] | None = None,
) -> Stories:
    tokens: dict[tuple[str, int], list[int]] = {}
    logprobs: dict[tuple[str, int], list[object]] = {}
    stories: Stories = {}

    def take(updates: list[SequenceUpdate]) -> None:
        for update in updates:
            name = (update.request_id, update.index)
            assert name not in stories, "output after the end"
            tokens.setdefault(name, []).extend(update.token_ids)
            logprobs.setdefault(name, []).extend(update.logprobs or [])
            if update.finish_reason is not None:
                stories[name] = (tokens[name], logprobs[name], update)

    for now in range(20_000):
        for at, request in arrivals:
            if at == now:
                core.add_request(request)
        if aborts and now in aborts:
            take(core.abort([aborts[now]]))
        take(core.step())
        core.check_integrity()
        if now > 20 and not core.has_work:
            assert core.stats().kv_blocks_used == 0
            core.close()
            return stories
    raise AssertionError("no end in sight")


def mixed(seed: int) -> list[tuple[int, EngineRequest]]:
    rng = random.Random(seed)
    arrivals = []
    for i in range(8):
        language = FINITE[i % len(FINITE)]
        params: dict[str, object] = {
            "max_tokens": rng.choice([3, 20, 60]),
            "temperature": rng.choice([0.0, 0.8, 1.5]),
            "seed": i,
            "n": rng.choice([1, 1, 2, 3]),
            "logprobs": rng.choice([None, 1]),
            "prompt_logprobs": rng.choice([None, None, 1]),
            "repetition_penalty": rng.choice([1.0, 1.2]),
        }
        if i % 4 != 3:
            params["grammar"] = language.spec
        prompt = b"the same beginning of each " * rng.choice([1, 2, 3]) + bytes([65 + i % 3])
        arrivals.append((rng.randrange(12), ask(f"{i}", prompt, **params)))
    return arrivals


def same(late: Stories, timely: Stories) -> None:
    assert late.keys() == timely.keys()
    for name, (tokens, logprobs, end) in late.items():
        if FinishReason.ABORT in (end.finish_reason, timely[name][2].finish_reason):
            shared = min(len(tokens), len(timely[name][0]))  # how far it came is a matter of steps
            assert tokens[:shared] == timely[name][0][:shared]
            continue
        assert (tokens, logprobs) == timely[name][:2]
        assert end.finish_reason is timely[name][2].finish_reason
        assert end.ends_in_text == timely[name][2].ends_in_text


QUICK, SLOW = 1e9, 0.0
"""What takes longer is slow: nothing, and everything."""
LIMITS = {"max_num_seqs": 6, "max_num_batched_tokens": 30}
PLAYS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@PLAYS
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.booleans(),
    st.sampled_from([12, 40]),
    st.booleans(),
    st.sampled_from([QUICK, SLOW, SLOW]),
)
def test_whenever_masks_come_the_tokens_are_the_same(
    blueprint: Blueprint,
    seed: int,
    often: float,
    overlapping: bool,
    blocks: int,
    abort: bool,
    slow: float,
) -> None:
    stories = []
    aborts = {9: "1", 15: "4"} if abort else None
    for threads, bound in ((Late(seed, often), slow), (Late(seed, 0.0), QUICK)):
        inner = HashExecutor(blocks, PADDED)
        executor = Deferred(inner) if overlapping else inner
        core = made(blueprint, threads, executor, **LIMITS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matcher, "SLOW_SECONDS", bound)
            stories.append(played(core, mixed(seed), aborts))
    same(*stories)


@PLAYS
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from([12, 40]),
    st.sampled_from([QUICK, 0.0002, SLOW]),
    st.sampled_from([None, 0.0, 0.5, 0.9]),
)
def test_nor_do_drafts_change_them(
    blueprint: Blueprint,
    seed: int,
    often: float,
    length: int,
    branching: bool,
    blocks: int,
    slow: float,
    quiet: float | None,
) -> None:
    """``quiet``: steps overlap, where nothing is drafted by this probability."""
    recorder = Recorder()
    plain = made(
        blueprint, Late(seed, 0.0), HashExecutor(blocks, PADDED), Speculation(recorder, 4), **LIMITS
    )
    timely = played(plain, mixed(seed))
    texts: Texts = recorder.texts()
    oracle = Oracle(texts, PADDED, 0.7, seed, branching)
    executor: Executor = HashExecutor(blocks, PADDED)
    speculation = Speculation(oracle, length)
    if quiet is not None:
        executor, speculation = (
            Deferred(HashExecutor(blocks, PADDED)),
            Fickle(oracle, length, quiet),
        )
    core = made(blueprint, Late(seed, often), executor, speculation, **LIMITS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matcher, "SLOW_SECONDS", slow)
        same(played(core, mixed(seed)), timely)


def test_lateness_happens_in_these_tests(
    blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "SLOW_SECONDS", QUICK)
    late = Late(1, 0.5)
    played(made(blueprint, late, HashExecutor(12, PADDED), **LIMITS), mixed(1))
    assert late.late > 10
    assert late.idle_waits > 5


@pytest.mark.parametrize("overlapping", [False, True])
def test_others_get_a_token_in_every_step_while_one_waits(
    blueprint: Blueprint, overlapping: bool
) -> None:
    held, inner = Held(), HashExecutor(200, PADDED)
    core = made(blueprint, held, Deferred(inner) if overlapping else inner)
    core.add_request(ask("late", grammar=LETTERS, seed=1))
    late = 0
    while late == 0:  # its first mask is known from compiling
        late += sum(len(u.token_ids) for u in core.step())
    core.add_request(ask("plain", max_tokens=40, ignore_eos=True))
    plain, steps = 0, 0
    while plain < 40:
        plain += sum(len(u.token_ids) for u in core.step() if u.request_id == "plain")
        steps += 1
    assert steps <= 43
    assert late == 1
    assert held.idle_waits == 0
    computed = core.stats().tokens_computed
    for _ in range(5):  # now there is nobody else: it waits, and nothing runs
        assert core.has_work
        assert core.step() == []
    assert held.idle_waits >= 3
    assert core.stats().tokens_computed <= computed + 1
    text: list[int] = []
    while core.has_work:
        held.let_go()
        text += [t for u in core.step() for t in u.token_ids]
        core.check_integrity()
    timely = made(blueprint, None)
    expected = played(timely, [(0, ask("late", grammar=LETTERS, seed=1))])["late", 0][0]
    assert text == expected[1:]
    core.close()


def test_one_that_waits_can_be_aborted_and_leaves_nothing(blueprint: Blueprint) -> None:
    held = Held()
    core = made(blueprint, held)
    core.add_request(ask("late", grammar=LETTERS, n=2))
    for _ in range(1000):
        if core.stats().tokens_generated:
            break
        core.step()
    for _ in range(5):
        core.step()
    assert [u.finish_reason for u in core.abort(["late"])] == [FinishReason.ABORT] * 2
    assert not core.has_work
    core.check_integrity()
    held.let_go()
    story = played(core, [(0, ask("next", max_tokens=3, ignore_eos=True))])
    assert len(story["next", 0][0]) == 3


def test_a_slow_grammar_is_not_drawn_for_before_its_mask_is_there(
    blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "SLOW_SECONDS", 0.0)
    held, executor = Held(), HashExecutor(200, PADDED)
    core = made(blueprint, held, executor)
    core.add_request(ask("slow", b"p", grammar=LETTERS))
    while not core.stats().tokens_generated:
        core.step()
    computed = core.stats().tokens_computed
    core.step()
    assert core.stats().tokens_computed == computed
    for _ in range(4):
        held.let_go()
        core.step()
    assert core.stats().tokens_computed == computed + 4
    assert core.stats().tokens_generated == 5
    core.abort(["slow"])
    core.close()


def test_tokens_are_taken_beside_the_interpreter(
    blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real threads, of which each sequence comes to the same as without."""
    arrivals = mixed(3)
    expected = played(made(blueprint, None, **LIMITS), arrivals)
    monkeypatch.setattr(matcher, "SLOW_SECONDS", 0.0)
    same(played(made(blueprint, None, **LIMITS), arrivals), expected)


def test_a_grammar_beyond_its_budget_is_ended_alone(
    blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        (0, ask("free", max_tokens=12, ignore_eos=True, seed=1)),
        (0, ask("slow", grammar=LETTERS, seed=1)),
    ]
    expected = played(made(blueprint, None), requests)
    warm = made(blueprint, None)
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
    blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        (0, ask("free", max_tokens=12, ignore_eos=True, seed=1)),
        (0, ask("bad", grammar=LETTERS, seed=1)),
        (0, ask("good", grammar=choice("ab").spec, seed=1)),
    ]
    expected = played(made(blueprint, None), requests)
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
            stories = played(made(blueprint, None), requests)
        text, _, end = stories["bad", 0]
        assert text == expected["bad", 0][0][:tokens]
        assert end.finish_reason is FinishReason.ERROR
        assert "index out of bounds" in str(end.error)
        assert stories["free", 0][0] == expected["free", 0][0]
        if kind is not Consumers:
            assert stories["good", 0][0] == expected["good", 0][0]


def test_what_a_request_asks_for_and_cannot_have_is_its_own_fault(
    blueprint: Blueprint, tmp_path: Path
) -> None:
    stuck = {"grammar": choice("ab").spec, "min_tokens": 3, "stop_token_ids": (ord("b"),)}
    stories = played(
        made(blueprint, None),
        [(0, ask("stuck", n=2, **stuck)), (0, ask("fine", max_tokens=2, ignore_eos=True))],
    )
    for index in range(2):
        end = stories["stuck", index][2]
        assert end.finish_reason is FinishReason.ERROR
        assert end.refused
    assert not stories["fine", 0][2].refused
