"""Who lacks a block waits for what a sequence holds that is sure to end in the step in flight."""

from __future__ import annotations

import pytest
from support.scheduler_loop import check_complete, make_loop, request


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "output"), [(1, 6, 4), (1, 7, 4), (1, 8, 4), (2, 1, 7), (2, 1, 1)]
)
def test_nobody_is_preempted_for_blocks_that_are_sure_to_come(
    first: int, second: int, output: int, runs_ahead: bool
) -> None:
    """The first request lacks a block behind the last step of the second; the third is the one that
    would give way, and be computed again."""
    figures = []
    for ahead in (False, True):
        loop = make_loop(4, 3, 16, 64, ahead=ahead, prefix=False)
        leaders = [
            request("a", [1] * first, max_tokens=8, runs_ahead=runs_ahead),
            request("b", [2] * second, max_tokens=output, runs_ahead=runs_ahead),
            request("c", [3] * 3, max_tokens=5, runs_ahead=runs_ahead),
        ]
        for leader in leaders:
            loop.scheduler.add(leader)
        loop.run()
        check_complete(loop, leaders)
        figures.append((loop.scheduler.stats().preemptions, loop.scheduler.tokens_computed))
    assert figures[0] == figures[1]
    assert figures[0][0] == 0
