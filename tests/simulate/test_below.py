"""A disk below a simulated cache finds what the pool has forgotten, as far as it has room."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import played, setup_of, single

from penstock.bench.load.turn import Piece
from penstock.simulate.fleet import Fleet
from penstock.simulate.outcome import outcome
from penstock.simulate.setup import Setup

PROMPTS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), min_size=1, max_size=20)


def with_disk(blocks: int, pool: int = 16) -> Setup:
    setup = setup_of(blocks=pool)
    return replace(setup, limits=replace(setup.limits, disk_blocks=blocks))


def asked(setup: Setup, prompts: list[tuple[int, int]]) -> Fleet:
    """Prompts one after the other, each the first tokens of one of several texts."""
    return played(
        setup,
        [
            single(i, 1000.0 * i, [Piece((text,), tokens)], 1)
            for i, (text, tokens) in enumerate(prompts)
        ],
    )


def test_a_prompt_that_the_pool_forgot_by_hand() -> None:
    # Blocks of 4 tokens: 41 of a prompt are 10 blocks, of which the pool holds 16.
    prompts = [(0, 41), (1, 41), (2, 41), (0, 41), (0, 41)]
    fleet = asked(with_disk(100), prompts)
    assert [each.below for each in fleet.answers] == [0, 0, 0, 40, 40]
    assert [each.cached for each in fleet.answers] == [0, 0, 0, 0, 40]
    told = outcome(fleet, (), None, 1.0, None, 0.0)
    assert told.disk_share == 40 / 205
    assert told.cached_share == 40 / 205
    # With room for 25 blocks, of the first prompt the last five have made room, in whatever steps
    # they were computed.
    fleet = asked(with_disk(25), prompts)
    assert [each.below for each in fleet.answers] == [0, 0, 0, 20, 40]


def test_none_is_told_without_one() -> None:
    fleet = asked(setup_of(), [(0, 41), (0, 41)])
    assert outcome(fleet, (), None, 1.0, None, 0.0).disk_share is None


@given(prompts=PROMPTS, blocks=st.integers(0, 60))
@settings(max_examples=30)
def test_it_never_holds_more_than_its_room_nor_finds_what_was_not_there(
    prompts: list[tuple[int, int]], blocks: int
) -> None:
    fleet = asked(with_disk(blocks), prompts)
    below = fleet.replicas[0].engine._below
    assert below is not None
    assert len(below) <= blocks
    longest: dict[int, int] = {}
    for (text, tokens), each in zip(prompts, fleet.answers, strict=True):
        most = min(longest.get(text, 0), tokens - 1) // 4 * 4
        assert each.below <= min(most, blocks * 4)
        if blocks >= 5 * 10:  # all of it
            assert each.below == most
        longest[text] = max(longest.get(text, 0), tokens)
    without = asked(setup_of(blocks=16), prompts)
    assert [a.last_s for a in fleet.answers] == [a.last_s for a in without.answers]
