"""A step's state tables: what is refused, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.state_steps import with_states
from support.tiny_plans import Chunk, step_of, tokens_of

from penstock.interface.state_check import check_states

A, B = tokens_of(1, 40), tokens_of(2, 9)
PLAIN = step_of([Chunk(A, 10, 14, [0]), Chunk(B, 0, 5, [1])])
STEP = with_states(PLAIN, [3, 0], seen=[9, 0], tentative=[2, 0], snapshots=[(0, 12, 1), (1, 5, 2)])


def test_what_is_right_passes() -> None:
    check_states(STEP, 4, 2)
    check_states(PLAIN, 0, 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"slots": [3]}, "states.slots of the step is .1. for 2 sequences"),
        ({"slots": [4, 0]}, "slots 0 to 4, and there are slots 0 to 3"),
        ({"slots": [3, -1]}, "slots -1 to 3"),
        ({"slots": [3, 3]}, "twice"),
        ({"slots": [3, 1]}, "twice"),
        ({"seen": [11, 0]}, "sequence 0 of the step has seen 11 tokens, .* goes on from 10"),
        ({"seen": [7, 0]}, "may lag by 0 to 2"),
        ({"seen": [9, -1]}, "seen -1"),
        ({"tentative": [3, 0]}, "3 of 4 rows of sequence 0 .* at most 2 may"),
        ({"tentative": [0, -1]}, "-1 of 5 rows of sequence 1"),
        ({"snapshots": [(0, 13, 1)]}, "is of 13 tokens; its state goes from 9 to 12"),
        ({"snapshots": [(0, 9, 1)]}, "is of 9 tokens"),
        ({"snapshots": [(2, 9, 1)]}, "a sequence that it does not have"),
        ({"snapshots": [(1, 5, 2), (0, 12, 1)]}, "do not ascend"),
        ({"snapshots": [(0, 12, 4)]}, "states.snapshots of the step name slots"),
        ({"snapshots": [(0, 11, 1), (0, 12, 1)]}, "twice"),
        ({"copies": [(0, 4)]}, "states.copies of the step name slots 0 to 4"),
        ({"copies": [0, 1]}, "states.copies of the step is .2., not .n, 2."),
    ],
)
def test_what_is_wrong_is_refused(changes: dict[str, Any], reason: str) -> None:
    arrays = {name: np.asarray(value, np.int32) for name, value in changes.items()}
    assert STEP.states is not None
    with pytest.raises(ValueError, match=reason):
        check_states(replace(STEP, states=replace(STEP.states, **arrays)), 4, 2)


def test_trees_and_steps_of_the_wrong_model_are_refused() -> None:
    tree = replace(STEP, tree_parents=np.arange(-1, 8, dtype=np.int32))
    with pytest.raises(ValueError, match="draft tree"):
        check_states(tree, 4, 2)
    with pytest.raises(ValueError, match="keep no states"):
        check_states(STEP, 0, 0)
    with pytest.raises(ValueError, match="no state slots"):
        check_states(PLAIN, 4, 0)
