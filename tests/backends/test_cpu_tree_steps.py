"""Draft trees through whole plans: bits of plain decoding, before and after a path is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draft_trees import parent_lists
from support.latents import over_latents
from support.needs import needs_native
from support.tiny_plans import Chunk, dummy_weights, make_spec, tokens_of
from support.tree_steps import F32, Accepted, Branches, tree_step

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.cache.geometry import KvDType
from penstock.interface.draft_tree import check_tree
from penstock.interface.executor import Limits
from penstock.models.spec import DType, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower

VARIANTS = native.runnable()

pytestmark = needs_native

LIMITS = Limits(num_blocks=40, max_tokens=96, max_logit_rows=96, max_sequences=8, threads=2)
SPECS = {
    "plain": make_spec(qk_norm=True),
    "window": make_spec(window=9, heads=(4, 4)),
    "latents": over_latents(make_spec()),
}


def make_executor(
    spec: ModelSpec, dtype: DType, kv_dtype: KvDType | None, isa: str | None, threads: int = 2
) -> CpuExecutor:
    plan = fuse(lower(spec, dtype, kv_dtype=kv_dtype))
    limits = replace(LIMITS, threads=threads)
    return bind(plan, dummy_weights(spec, 3, dtype), limits, native.load(isa))


def logits_of(
    executor: Any, chunks: list[Chunk], moves: list[tuple[int, int]] | None = None
) -> F32:
    result: F32 = executor.run(tree_step(chunks, moves=moves or [])).logits.copy()
    return result


def cache_of(executor: CpuExecutor) -> list[bytes]:
    return [executor._native.kv_copy(layer).tobytes() for layer in range(2)]


# Two trees one after the other, the first across the end of a block. Rows of other sequences run
# beside them: a prefill before and a decode behind.
START = 27
TREES = [([-1, 0, 0, 1, 2, 4, 4, 3, 6, 8], 9), ([-1, 0, 1, 1, 0, 4, 3, 6], 7)]
BLOCKS = [7, 3, 20]


@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize(
    ("name", "dtype", "kv_dtype"),
    [
        (name, dtype, kv_dtype)
        for name in SPECS
        for dtype, kv_dtype in (
            ("float32", None),
            ("float16", None),
            ("bfloat16", None),
            ("bfloat16", "int8"),
            ("float32", "int4"),
            ("bfloat16", "k8v4"),
            ("bfloat16", "fp8"),
        )
        if name != "latents" or kv_dtype in (None, "int8")
    ],
)
def test_trees_are_bitwise_plain_decoding(
    name: str, dtype: DType, kv_dtype: KvDType | None, isa: str
) -> None:
    trees, plain = (make_executor(SPECS[name], dtype, kv_dtype, isa, n) for n in (2, 1))
    known = Accepted(tokens_of(5, START), BLOCKS)
    first, second = tokens_of(6, 60), tokens_of(7, 60)
    for executor in (trees, plain):
        logits_of(executor, [Chunk(known.tokens, 0, START, BLOCKS)])
    for at, (parents, last) in enumerate(TREES):
        tree = known.branches(tokens_of(8 + at, len(parents)), parents)
        moves, known.moves = known.moves, []
        others = [
            Chunk(first, 20 * at, 20 * at + 20, [1, 2], rows=[]),
            Chunk(second, at, at + 1, [5]),
        ]
        rows = logits_of(trees, [others[0], tree, others[1]], moves)
        start = len(known.tokens)
        path = known.accept(tree, last)
        for depth, row in enumerate(path):
            place = start + depth
            (alone,) = logits_of(plain, [Chunk(known.tokens, place, place + 1, BLOCKS)])
            assert rows[row].tobytes() == alone.tobytes()
        logits_of(plain, others)
    # Slots of rejected rows are written again by what comes to lie there: nothing else is left.
    place, end = len(known.tokens), start + len(TREES[-1][0])
    tokens = np.concatenate([known.tokens, tokens_of(9, end - place)])
    rest: list[Chunk] = [Chunk(tokens, place, end, BLOCKS, rows=range(place, end))]
    assert logits_of(trees, rest, known.moves).tobytes() == logits_of(plain, rest).tobytes()
    # The first tree's rejected rows lie before the second tree, which wrote over all of them.
    assert cache_of(trees) == cache_of(plain)
    trees.close()
    plain.close()


@pytest.mark.parametrize("kv_dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", SPECS)
def test_trees_agree_with_the_reference(name: str, kv_dtype: KvDType) -> None:
    spec = SPECS[name]
    plan = fuse(lower(spec, "float32", kv_dtype=kv_dtype))
    executor = make_executor(spec, "float32", kv_dtype, None)
    reference = ReferenceExecutor(plan, dummy_weights(spec, 3, "float32"), LIMITS)
    known = Accepted(tokens_of(5, START), BLOCKS)
    steps = [tree_step([Chunk(known.tokens, 0, START, BLOCKS)])]
    for at, (parents, last) in enumerate(TREES):
        tree = known.branches(tokens_of(8 + at, len(parents)), parents)
        steps.append(tree_step([tree], moves=known.moves))
        known.moves = []
        known.accept(tree, last)
    # What differs by an ulp before it is rounded to a code may differ by a code after it.
    tolerance = 3e-5 if kv_dtype == "float32" else 1.5e-2
    for step in steps:
        got, expected = executor.run(step).logits, reference.run(step).logits
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
    executor.close()


def test_moves_come_before_copies() -> None:
    """A copied block has what was moved into it."""
    executor = make_executor(SPECS["plain"], "float32", None, None)
    tokens = tokens_of(3, 12)
    plain = logits_of(executor, [Chunk(tokens, 0, 12, [8])])[-1]
    logits_of(executor, [Chunk(tokens, 0, 9, [4])])
    tree = Branches(np.insert(tokens[:11], 9, 0), 9, 12, [4], [11], parents=(-1, -1, 1))
    logits_of(executor, [tree])
    moves = [(4 * 32 + 10, 4 * 32 + 9), (4 * 32 + 11, 4 * 32 + 10)]
    step = tree_step([Chunk(tokens, 11, 12, [6])], copies=[(4, 6)], moves=moves)
    assert executor.run(step).logits[-1].tobytes() == plain.tobytes()
    executor.close()


@pytest.fixture(scope="module")
def executor() -> Iterator[CpuExecutor]:
    made = make_executor(SPECS["plain"], "float32", None, None, threads=1)
    yield made
    made.close()


@given(
    parents=parent_lists(most=6),
    changes=st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 12)), max_size=2),
    shifts=st.lists(st.tuples(st.integers(0, 9), st.integers(-2, 2)), max_size=1),
)
@settings(max_examples=60, deadline=None)
def test_what_is_no_tree_is_refused_as_everywhere(
    executor: CpuExecutor,
    parents: list[int],
    changes: list[tuple[int, int]],
    shifts: list[tuple[int, int]],
) -> None:
    known = Accepted(tokens_of(5, START), BLOCKS)
    step = tree_step([known.branches(tokens_of(8, len(parents)), parents)])
    for row, parent in changes:
        step.tree_parents[row % len(parents)] = parent
    for row, by in shifts:
        step.positions[row % len(parents)] += by
    assert _refusal(lambda: executor.run(step)) == _refusal(lambda: check_tree(step))


def _refusal(run: Callable[[], object]) -> str:
    try:
        run()
    except ValueError as error:
        return str(error)
    return ""


def test_trees_and_moves_beyond_bounds_are_refused() -> None:
    executor = make_executor(SPECS["plain"], "float32", None, None)
    known = Accepted(tokens_of(5, 20), BLOCKS)
    wide = known.branches(tokens_of(6, 66), [-1, *[0] * 65])
    with pytest.raises(ValueError, match="65 rows that branch; a draft tree has at most 64"):
        executor.run(tree_step([wide]))
    with pytest.raises(ValueError, match=r"moved slot 1280 is not in \[0, 1280\)"):
        executor.run(tree_step([Chunk(known.tokens, 0, 1, [0])], moves=[(1280, 3)]))
    short = replace(tree_step([Chunk(known.tokens, 0, 2, [0])]), tree_parents=np.int32([-1]))
    with pytest.raises(ValueError, match="1 tree_parents for 2 tokens"):
        executor.run(short)
    assert executor.run(tree_step([Chunk(known.tokens, 0, 2, [0])])).logits.shape == (1, 211)
    executor.close()
