"""A sequence waits for blocks that are on their way for another one, and for nothing else of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.restored import NAME_BYTES, Answer, Engine, at_once, small_pieces

from penstock.cache.geometry import BLOCK_SIZE
from penstock.scheduler.sequence import SequenceState, Status


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_pieces():
        yield


def prompt(blocks: int, first: int = 0) -> list[int]:
    return [*range(first, first + blocks * BLOCK_SIZE), 7]


def slowly() -> tuple[Answer, float]:
    return "whole", 1.0


def test_a_short_prefix_of_a_long_one_is_there_as_soon_as_it_was_read() -> None:
    """Not when all of the long one has come."""
    engine = Engine([slowly], token_s=1.0)
    long = prompt(100)
    engine.hold(0, long)
    engine.add(long)
    short = engine.add([*prompt(2)[:-1], 9, 9])
    for _ in range(5):
        engine.step(1.0)
    assert short.status is Status.FINISHED
    assert short.num_cached_tokens == 2 * BLOCK_SIZE
    asked = [key for _, wanted in engine.stores[0].asked for key in wanted.keys]
    assert len(asked) == len(set(asked)) < 100


def test_a_short_prefix_is_worth_waiting_for_however_much_comes_behind_it() -> None:
    engine = Engine([slowly], token_s=1.0)
    engine.costs.bandwidths[0].add(NAME_BYTES, 1.0)  # a block a second
    long = prompt(100)
    engine.hold(0, long)
    engine.add(long)
    engine.add([*prompt(2)[:-1], 9, 9])
    assert engine.restoring.restored[0].declined == 0


def one_that_goes_before(engine: Engine) -> SequenceState:
    """A sequence that goes before one that reads a longer prefix, after three seconds of steps."""
    long = prompt(18)
    engine.hold(0, long)
    engine.add(long)
    short = engine.add([*prompt(2)[:-1], 9, 9], priority=-1)
    for _ in range(30):
        engine.step(0.1)
    return short


def test_what_has_no_room_is_not_waited_for() -> None:
    """A sequence that is let in first and for whose own prefix there is room reads that itself."""
    engine = Engine([at_once], num_blocks=20, token_s=1.0)
    running = engine.add([5] * (8 * BLOCK_SIZE), output=200)
    engine.step(0.0)
    short = one_that_goes_before(engine)
    assert running.status is Status.RUNNING
    assert short.status is Status.FINISHED
    assert short.num_cached_tokens == 2 * BLOCK_SIZE


def test_what_the_store_does_not_have_any_more_is_not_waited_for() -> None:
    """Though the sequence that it was read for has not started yet."""
    answers: list[tuple[Answer, float]] = [("short", 1.0)]
    engine = Engine([lambda: answers.pop() if answers else at_once()], num_blocks=20, token_s=1.0)
    engine.add([5] * (8 * BLOCK_SIZE), output=200)
    engine.step(0.0)
    short = one_that_goes_before(engine)
    assert short.status is Status.FINISHED
    assert short.num_cached_tokens == 2 * BLOCK_SIZE


def test_what_was_put_and_is_gone_again_is_not_waited_for() -> None:
    """While its reader goes on with what is behind it."""
    engine = Engine([slowly], token_s=1.0, num_blocks=200)
    long = prompt(100)
    engine.hold(0, long)
    engine.add(long)
    for _ in range(3):
        engine.step(1.0)
    assert engine.cache.num_cached_blocks >= 2
    engine.cache.reset()
    short = engine.add([*prompt(2)[:-1], 9, 9])
    for _ in range(4):
        engine.step(1.0)
    assert short.status is Status.FINISHED
    assert short.num_cached_tokens == 2 * BLOCK_SIZE


def test_time_in_line_is_no_patience_with_a_store() -> None:
    """One that has waited long for room, and has lost its blocks meanwhile, reads them again."""
    engine = Engine([lambda: ("whole", 0.3)], num_blocks=30)
    running = engine.add([5] * (18 * BLOCK_SIZE), output=60)
    engine.step(0.0)
    tokens = prompt(15)
    engine.hold(0, tokens)
    waiting = engine.add(tokens)
    patience = engine.costs.patience_s(len(tokens))
    while engine.clock.now < 3 * patience:
        engine.step(1.0)
    assert running.status is Status.RUNNING
    assert engine.scheduler.num_waiting == 1
    engine.cache.reset()
    engine.scheduler.abort("0")
    for _ in range(4):
        engine.step(0.5)
    assert waiting.status is Status.FINISHED
    assert waiting.num_cached_tokens == 15 * BLOCK_SIZE
