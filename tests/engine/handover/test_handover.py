"""Prompts that are handed over: answers are those of one engine, bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bitwise import prompt
from support.cached_kinds import KINDS
from support.handed import (
    LLAMA,
    complete,
    config,
    connected,
    decoding,
    folder_of,
    handovers,
    plain,
    prefilling,
    request,
)
from support.needs import needs_native

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.messages import EngineRequest

pytestmark = needs_native


def requests() -> list[EngineRequest]:
    """Prompts of whole blocks and of parts, one for several sequences, two that share a prefix."""
    shared = prompt(1, 200)
    return [
        request("a", shared),
        request("b", shared[:150] + prompt(2, 47), temperature=1.0, seed=3),
        request("c", prompt(3, 5 * BLOCK_SIZE), n=2, temperature=1.0, seed=4),
        request("d", prompt(4, 5 * BLOCK_SIZE + 1), salt="salt"),
        request("e", prompt(5, 300), max_tokens=40),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_one_engine(kind: str, tmp_path: Path) -> None:
    model, options = KINDS[kind]
    asked = config(folder_of(tmp_path, model), **options)
    alone = plain(asked)
    expected = complete(alone, requests())
    alone.close()
    with prefilling(asked) as (prefill, address), decoding(asked, address) as decode:
        connected(decode)
        assert complete(decode, requests()) == expected
        found = handovers(decode)
        assert (found.completed, found.failed, found.open) == (5, 0, 0)
        assert found.recomputed_tokens == 0
        whole = sum((len(r.prompt_token_ids) - 1) // BLOCK_SIZE for r in requests())
        assert found.tokens == whole * BLOCK_SIZE
        assert found.bytes > 0
        there = handovers(prefill)
        assert (there.completed, there.failed, there.peers) == (5, 0, 1)
        # All but the ends of prompts was computed there.
        answers = sum(map(len, expected.values()))
        assert decode.tokens_computed <= answers + len(expected) * (BLOCK_SIZE + 1)
        # What is cached needs no handover.
        again = [request("again", requests()[0].prompt_token_ids)]
        assert complete(decode, again)["again", 0] == expected["a", 0]
        assert handovers(decode).completed == 5


def test_keys_are_needed_and_prove_themselves(tmp_path: Path) -> None:
    asked = config(folder_of(tmp_path, LLAMA))
    key = b"a secret of some length"
    alone = plain(asked)
    expected = complete(alone, requests())
    alone.close()
    with (
        prefilling(asked, key=key) as (prefill, address),
        decoding(asked, address, key=key) as decode,
    ):
        connected(decode)
        assert complete(decode, requests()) == expected
        assert handovers(decode).completed == handovers(prefill).completed == 5


def test_two_prefill_engines_share_prompts(tmp_path: Path) -> None:
    asked = config(folder_of(tmp_path, LLAMA))
    alone = plain(asked)
    expected = complete(alone, requests())
    alone.close()
    with (
        prefilling(asked) as (first, one),
        prefilling(asked) as (second, other),
        decoding(asked, one, other) as decode,
    ):
        connected(decode, 2)
        assert complete(decode, requests()) == expected
        assert handovers(decode).completed == 5
        assert handovers(first).completed + handovers(second).completed == 5
