"""The tables of a step: the same for each KV group as if it were the only one."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.step_builder import ChainSteps, build_step

LENGTHS = (1, 31, 32, 33, 100)
"""Tokens of each sequence after the step."""


def tables_of(groups: int, blocks: int) -> list[list[array[int]]]:
    """Random tables of as many blocks for each sequence, in each group."""
    rng = np.random.default_rng(groups)
    return [
        [array("i", rng.integers(0, 1000, blocks).tolist()) for _ in LENGTHS] for _ in range(groups)
    ]


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("counts", [(1, 1, 1, 1, 1), (1, 31, 2, 33, 7)])
def test_a_group_has_the_slots_and_ids_of_its_tables(groups: int, counts: tuple[int, ...]) -> None:
    tables = tables_of(groups, 4)
    tokens = [array("i", [7]) * count for count in counts]
    starts = [length - count for length, count in zip(LENGTHS, counts, strict=True)]
    step = build_step(tokens, starts, tables)
    assert len(step.groups) == groups
    for each, own in zip(step.groups, tables, strict=True):
        slots = [
            own[s][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            for s, (start, count) in enumerate(zip(starts, counts, strict=True))
            for position in range(start, start + count)
        ]
        assert each.slots.tolist() == slots
        assert each.block_ids.tolist() == [block for table in own for block in table]
        assert each.block_starts.tolist() == [0, 4, 8, 12, 16, 20]
        for part in each:
            assert part.dtype == np.int32
            assert part.flags.c_contiguous


@pytest.mark.parametrize("groups", [1, 6])
def test_consecutive_steps_are_those_built_one_by_one(groups: int) -> None:
    tables = tables_of(groups, 5)
    ends = np.array(LENGTHS, np.int32)
    chain = ChainSteps(tables, ends, 3)
    for at in range(3):
        step = chain.step_input(at, np.full(4, 7, np.int32))
        first = [own[:4] for own in tables]
        expected = build_step([array("i", [7])] * 4, (ends[:4] + at).tolist(), first)
        for each, wanted in zip(step.groups, expected.groups, strict=True):
            for part, same in zip(each, wanted, strict=True):
                np.testing.assert_array_equal(part, same)
