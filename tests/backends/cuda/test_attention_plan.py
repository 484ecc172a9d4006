"""Work lists of attention: everything once, within bounds, shared out well."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.draft_trees import ancestors, parent_lists

from penstock.backends.cuda.attention_plan import (
    FIELDS,
    WorkPlanner,
    split_starts,
    tree_paths,
)
from penstock.cache.geometry import BLOCK_SIZE, Chunk, Window, first_seen
from penstock.interface.draft_tree import trunk_rows
from penstock.interface.step import KvTables, StepInput

MAX_CONTEXT = 3000


def planner(
    window: Window | None = None, group: int = 4, programs: int = 264, capacity: int = 400
) -> WorkPlanner:
    starts = split_starts(MAX_CONTEXT, window is not None)
    return WorkPlanner(group, 8, 64 // group, window, starts, programs, capacity)


def step_of(lengths: list[tuple[int, int]]) -> StepInput:
    """Sequences of (queries, context)."""
    queries, contexts = np.array(lengths, np.int32).reshape(-1, 2).T
    none = np.zeros(0, np.int32)
    blocks = -(-contexts // BLOCK_SIZE)
    return StepInput(
        token_ids=none,
        positions=none,
        groups=(
            KvTables(
                none,
                np.concatenate([[0], np.cumsum(blocks)]).astype(np.int32),
                np.zeros(blocks.sum(), np.int32),
            ),
        ),
        query_starts=np.concatenate([[0], np.cumsum(queries)]).astype(np.int32),
        context_lens=contexts,
        logit_rows=none,
        block_copies=np.zeros((0, 2), np.int32),
    )


def visited(step: StepInput, work: NDArray[np.int32], starts: NDArray[np.int32]) -> set[object]:
    """Each (row, position, block table, split), and that none comes twice."""
    seen = set()
    for row, tokens, position, blocks, begin, end, *_ in work[1:].tolist():
        for token in range(tokens):
            for split in range(begin, end):
                if starts[split] <= position + token:
                    key = (row + token, position + token, blocks, split)
                    assert key not in seen
                    seen.add(key)
    return seen


@st.composite
def _lengths(draw: st.DrawFn) -> list[tuple[int, int]]:
    sequences = []
    for _ in range(draw(st.integers(1, 6))):
        context = draw(st.integers(1, MAX_CONTEXT))
        sequences.append((draw(st.integers(1, min(context, 90))), context))
    return sequences


@settings(deadline=None)
@given(
    lengths=_lengths(),
    window=st.none() | st.integers(1, 1500) | st.integers(1, 1500).map(Chunk),
    group=st.sampled_from([1, 3, 7, 64]),
    programs=st.sampled_from([1, 16, 300]),
    capacity=st.integers(0, 3000),
)
def test_every_row_meets_every_split_it_sees_once(
    lengths: list[tuple[int, int]], window: Window | None, group: int, programs: int, capacity: int
) -> None:
    plan = planner(window, group, programs, capacity)
    step = step_of(lengths)
    work = plan.plan(step)
    assert work.shape == (1 + work[0, 0], FIELDS)
    assert work.dtype == np.int32
    expected = set()
    for s, (queries, context) in enumerate(lengths):
        for i in range(queries):
            position = context - queries + i
            oldest = 0 if window is None else first_seen(window, position)
            first, last = np.searchsorted(plan.starts, [oldest, position], "right") - 1
            row, blocks = int(step.query_starts[s]) + i, int(step.groups[0].block_starts[s])
            expected |= {(row, position, blocks, int(z)) for z in range(first, last + 1)}
    # A tile visits, for its later rows' sake or its earlier ones', splits that a row does not see.
    assert expected <= visited(step, work, plan.starts)

    ranges = []
    for _, tokens, _, _, begin, end, parts, part, base, *_ in work[1:].tolist():
        assert begin < end
        assert 1 <= tokens <= plan.tile_tokens
        assert 0 <= part < parts
        if parts > 1:
            assert end == begin + 1
            rows = tokens * group
            ranges.append((base + part * rows, base + (part + 1) * rows))
    ranges.sort()
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    assert not ranges or ranges[-1][1] <= capacity


def test_a_lone_decode_row_is_split_and_a_large_batch_is_not() -> None:
    plan = planner()
    lone = plan.plan(step_of([(1, 3000)]))
    assert lone[0, 0] == 12
    assert sorted(lone[1:, 4].tolist()) == list(range(12))
    crowd = plan.plan(step_of([(1, 3000)] * 3 + [(1, 300)] * 2000))
    assert (crowd[1:, 6] > 1).sum() == 3 * 12
    assert (crowd[1:, 6] == 1).sum() == 2000


def test_prefill_of_one_long_prompt_is_whole_tiles_longest_first() -> None:
    work = planner().plan(step_of([(3000, 3000)]))
    ends = work[1:, 1] + work[1:, 2]
    assert work[0, 0] == 188
    assert (work[1:, 6] == 1).all()
    assert (np.diff(ends) <= 0).all()


def test_what_finds_no_scratch_stays_whole() -> None:
    plan = replace(planner(), capacity=30)
    work = plan.plan(step_of([(1, 700), (1, 800), (1, 1000)]))
    parts = {int(item[0]): int(item[6]) for item in work[1:]}
    assert parts == {0: 1, 1: 1, 2: 4}


@pytest.mark.parametrize("windowed", [False, True])
def test_splits_start_at_tiles_and_end_past_the_longest_context(windowed: bool) -> None:
    starts = split_starts(131072, windowed)
    assert starts[0] == 0
    assert starts[-2] <= 131072 < starts[-1]
    sizes = np.diff(starts)
    assert (starts % 64 == 0).all()
    assert (np.diff(sizes) >= 0).all()
    if windowed:
        assert (sizes == 256).all()
    else:
        assert len(sizes) <= 57
        assert (sizes[16:] * 8 <= starts[16:-1]).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 200000))
def test_splits_do_not_depend_on_the_longest_context(most: int) -> None:
    starts = split_starts(most, windowed=False)
    np.testing.assert_array_equal(starts, split_starts(200000, windowed=False)[: len(starts)])


@settings(deadline=None)
@given(
    trees=st.lists(
        st.tuples(st.integers(1, 700), parent_lists(most=40, trunk=80)), min_size=1, max_size=4
    ),
    window=st.none() | st.integers(1, 500) | st.integers(1, 500).map(Chunk),
    group=st.sampled_from([1, 3, 64]),
    programs=st.sampled_from([1, 300]),
)
def test_tiles_of_trees_end_at_forks(
    trees: list[tuple[int, list[int]]], window: Window | None, group: int, programs: int
) -> None:
    """Every row is in one tile, beside rows of its side of the fork, within what they see."""
    plan = planner(window, group, programs)
    step = step_of([(len(parents), start + len(parents)) for start, parents in trees])
    depths = [len(ancestors(p, row)) - 1 + start for start, p in trees for row in range(len(p))]
    parents = np.array([parent for _, p in trees for parent in p], np.int32)
    step = replace(step, positions=np.array(depths, np.int32), tree_parents=parents)
    paths = tree_paths(step)
    forks = []
    for start, p in trees:
        trunk = trunk_rows(np.array(p, np.int32))
        forks += [-1] * trunk + [start + trunk] * (len(p) - trunk)
    rows = []
    for row, tokens, position, _, begin, end, _, part, _, stop, fork, path in plan.plan(step)[1:]:
        seen = step.positions[row : row + tokens]
        assert (position, stop) == (seen.min(), seen.max() + 1)
        assert set(forks[row : row + tokens]) == {fork}
        assert begin < end
        assert plan.starts[begin] < stop
        if part == 0:
            rows += range(row, row + tokens)
        if fork >= 0:  # the path of each row leads over as many places as it is behind the fork
            lengths = (paths[path : path + tokens] > 0).sum(axis=1)
            np.testing.assert_array_equal(lengths, seen - fork + 1)
    assert sorted(rows) == list(range(len(parents)))


def busiest(plan: WorkPlanner, work: NDArray[np.int32]) -> tuple[float, float]:
    """What a program has to do at most, and on average, in tokens and their like."""
    items = work[1:].astype(np.int64)
    begin, end, stop = items[:, 4], items[:, 5], items[:, 9]
    seen = np.minimum(plan.starts[end], stop) - plan.starts[begin]
    cost = np.repeat(64 + seen + np.where(items[:, 6] > 1, 2 * items[:, 1] * plan.group, 0), 8)
    programs = np.arange(len(cost)) % plan.programs
    return float(np.bincount(programs, cost).max()), cost.sum() / plan.programs


@pytest.mark.parametrize("programs", [216, 264, 296])
@pytest.mark.parametrize("length", [300, 1024, 2900])
def test_programs_end_at_about_the_same_time(length: int, programs: int) -> None:
    plan = planner(programs=programs, capacity=100_000)
    ratios = []
    for count in range(1, 130):
        step = step_of([(1, length)] * count)
        work = plan.plan(step)
        most, _ = busiest(plan, work)
        for fixed in (np.zeros(count, np.bool_), np.ones(count, np.bool_)):  # none, or all
            other = type(plan)._split
            try:
                type(plan)._split = lambda self, tiles, fixed=fixed: (
                    fixed
                    & (  # type: ignore
                        tiles.last - tiles.first > 1
                    )
                )
                assert most <= busiest(plan, plan.plan(step))[0] * 1.1
            finally:
                type(plan)._split = other  # type: ignore[method-assign]
        ideal = count * (length + 64) * 8 / programs
        ratios.append(most / max(ideal, 256 + 64))
    assert float(np.mean(ratios)) < 1.5


def test_what_is_balanced_whole_is_not_split() -> None:
    """64 sequences of 1K: 512 items for 264 programs, where all splits would be 2,560."""
    work = planner(capacity=100_000).plan(step_of([(1, 1024)] * 64))
    assert work[0, 0] == 64
    assert (work[1:, 6] == 1).all()


def test_a_round_for_a_part_of_the_programs_is_split_alone() -> None:
    work = planner(capacity=100_000).plan(step_of([(1, 2048)] * 40))
    assert (work[1:, 6] == 1).sum() == 33
    assert (work[1:, 6] > 1).sum() == 7 * 8
