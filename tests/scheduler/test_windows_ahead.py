"""What lies behind windows comes back one step later where steps overlap: who waits for it."""

from __future__ import annotations

import pytest
from support.fake_model import Loop, Windows
from support.scheduler_loop import check_complete, make_loop, request

from penstock.scheduler.sequence import SequenceState

OUTPUT = 40


def finished(num_blocks: int, windows: Windows, prompts: list[int], ahead: bool) -> Loop:
    """Requests with prompts of these lengths, at once, until they have ended."""
    loop = make_loop(num_blocks, len(prompts), 16, 128, ahead=ahead, prefix=False, windows=windows)
    leaders: list[SequenceState] = []
    for i, length in enumerate(prompts):
        leaders.append(request(f"r{i}", [20 + i] * length, seed=i, max_tokens=OUTPUT))
        loop.scheduler.add(leaders[-1])
    loop.run()
    check_complete(loop, leaders)
    return loop


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_decode_waits_for_its_own_block(count: int) -> None:
    """Each has the three blocks of its window and no more: when it needs the next one, the step
    behind which it gives one back is in flight."""
    prompts = [1] * count
    plain, ahead = (finished(3 * count, (9,), prompts, each) for each in (False, True))
    assert plain.scheduler.stats().preemptions == ahead.scheduler.stats().preemptions == 0
    assert ahead.scheduler.tokens_computed == plain.scheduler.tokens_computed
    # One more step whenever a block is full that is not among the first three.
    assert ahead.scheduler.stats().steps <= plain.scheduler.stats().steps + OUTPUT // 4


@pytest.mark.parametrize(
    ("num_blocks", "windows", "prompts"),
    [
        (9, (8,), [3, 10, 25]),
        (9, (5,), [30, 2, 2, 17]),
        (17, (None, 8), [9]),
        (33, (8, 12, None), [6, 11]),
    ],
)
def test_no_more_is_computed_twice_than_by_step(
    num_blocks: int, windows: Windows, prompts: list[int]
) -> None:
    plain, ahead = (
        finished(num_blocks, windows, prompts, each).scheduler for each in (False, True)
    )
    assert ahead.stats().preemptions <= plain.stats().preemptions
    assert ahead.tokens_computed <= plain.tokens_computed
    assert ahead.stats().steps <= plain.stats().steps + len(prompts) * (OUTPUT // 4)


def test_where_nothing_comes_back_somebody_is_preempted() -> None:
    """Two that grow without end in the way of each other: the first of them goes on."""
    loop = finished(28, (None, 40), [20, 20], ahead=True)
    assert loop.scheduler.stats().preemptions > 0
    assert list(loop.finished) == [("r0", 0), ("r1", 0)]
