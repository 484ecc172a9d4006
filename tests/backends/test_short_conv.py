"""Convolutions along sequences: however rows are cut into steps, taken back, forked and shared."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.convolved import convolved
from support.kv_tables import in_groups
from support.native_executor import Buffers, make
from support.needs import needs_native
from support.tiny_plans import Chunk, make_spec, step_of, tokens_of
from support.tree_steps import Accepted, tree_step
from support.windowed import Driver

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.cache.geometry import BLOCK_SIZE, KvDType
from penstock.interface.executor import Limits
from penstock.models.spec import DType
from penstock.plan.fuse import fuse
from penstock.plan.kv_groups import kept_rows
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.weights.dummy import DummyWeights

pytestmark = pytest.mark.thinned(5)

VARIANTS = native.runnable()
LIMITS = Limits(num_blocks=60, max_tokens=160, max_logit_rows=160, max_sequences=4, threads=2)
LENGTH = 150
TYPES: list[tuple[DType, KvDType]] = [
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("float32", "int8"),
]
BACKENDS = ["reference", pytest.param("cpu", marks=needs_native)]


def plan_of(
    kinds: str = "cac",
    kernel: int = 3,
    taken_back: int | None = 1,
    types: tuple[DType, KvDType] = TYPES[0],
    bias: bool = False,
) -> Plan:
    spec = convolved(make_spec(bias=True), kinds, kernel, bias)
    return fuse(lower(spec, types[0], 512, kv_dtype=types[1], taken_back=taken_back))


def executor_of(plan: Plan, backend: str, threads: int = 2, isa: str | None = None) -> Any:
    weights, limits = DummyWeights(plan.weights, 3, plan.weight_dtype), LIMITS
    if backend == "reference":
        return ReferenceExecutor(plan, weights, limits)
    module = None if isa is None else native.load(isa)
    return bind(plan, weights, replace(limits, threads=threads), module)


class Sequences(Driver):
    """Sequences of which the latest tokens of a step may be taken back."""

    def spoil(self) -> None:
        """Nobody's blocks hold NaN."""
        counts = enumerate(self.cache._pool.ref_counts)
        free = np.array([block for block, count in counts if count == 0], np.int32)
        if hasattr(self.executor, "_native"):
            for layer in range(3):
                self.executor._native.kv_fill(layer, free, 0xFF)

    def run_but(self, *parts: tuple[int, NDArray[np.int32], int]) -> list[NDArray[np.float32]]:
        """Logits after each token of each part, but for those that are then taken back."""
        starts = [self.tables[i].num_committed for i, _, _ in parts]
        step = self.step(*((i, tokens) for i, tokens, _ in parts))
        self.spoil()
        logits = self.executor.run(step).logits.copy()
        bounds = np.cumsum([0] + [len(tokens) for _, tokens, _ in parts])
        kept = []
        for (i, tokens, back), start, (first, end) in zip(
            parts, starts, pairwise(bounds), strict=True
        ):
            computed = start + len(tokens) - back
            self.cache.commit(self.tables[i], array("i", [0] * computed), computed)
            self.cache.trim(self.tables[i])
            kept.append(logits[first : end - back])
        self.cache.check_integrity()
        return kept


@pytest.mark.slow
@pytest.mark.thinned(7)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("types", TYPES, ids=" ".join)
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 10**6),
    kernel=st.sampled_from([2, 3, 5, 9]),
    taken_back=st.sampled_from([1, 4, 6, 9, 17, 40]),
)
def test_any_cut_and_whatever_is_taken_back(
    backend: str, types: tuple[DType, KvDType], seed: int, kernel: int, taken_back: int
) -> None:
    """A row's bits are those of its sequence alone in one step."""
    plan, draw = plan_of(kernel=kernel, taken_back=taken_back, types=types), random.Random(seed)
    executor = executor_of(plan, backend, threads=draw.randint(1, 3))
    lines = [tokens_of(seed, LENGTH) for seed in range(3)]
    whole = []
    for tokens in lines:
        alone = Sequences(plan, executor)
        whole += alone.run_but((alone.start(), tokens, 0))
    driver = Sequences(plan, executor)
    for _ in lines:
        driver.start()
    done = [0] * len(lines)
    while any(at < LENGTH for at in done):
        parts = []
        for i, at in enumerate(done):
            if at == LENGTH or not draw.randrange(3):
                continue
            count = min(draw.choice([1, 1, 1, 2, 7, 31, 45]), LENGTH - at)
            wrong = draw.randint(0, min(taken_back, LIMITS.max_tokens // 3 - count))
            draft = tokens_of(draw.randrange(50, 60), wrong)
            parts.append((i, np.concatenate([lines[i][at : at + count], draft]), wrong))
        if not parts:
            continue
        for (i, tokens, wrong), rows in zip(parts, driver.run_but(*parts), strict=True):
            end = done[i] + len(tokens) - wrong
            np.testing.assert_array_equal(rows, whole[i][done[i] : end])
            done[i] = end
    executor.close()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("at", [1, 31, 32, 33, 34, 63, 70])
def test_forks_go_on_from_copies_of_their_last_block(backend: str, at: int) -> None:
    plan = plan_of(taken_back=1)
    executor = executor_of(plan, backend)
    stem, ends = tokens_of(1, at), [tokens_of(seed, 40) for seed in (2, 3, 4)]
    expected = []
    for end in ends:
        alone = Sequences(plan, executor)
        expected.append(alone.run_but((alone.start(), np.concatenate([stem, end]), 0))[0][at:])
    driver = Sequences(plan, executor)
    parent = driver.start()
    driver.run_but((parent, stem, 0))
    forks = [parent, driver.fork(parent), driver.fork(parent)]
    seen: list[list[Any]] = [[], [], []]
    for i in range(43):  # the last one begins later: blocks are copied in two steps
        places = [(f, i - (3 if f == 2 else 0)) for f in forks]
        parts = [(f, ends[f][at : at + 1], 0) for f, at in places if 0 <= at < 40]
        for (f, _, _), rows in zip(parts, driver.run_but(*parts), strict=True):
            seen[f].append(rows)
    for got, wanted in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(np.concatenate(got), wanted)
    executor.close()


@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("types", TYPES, ids=" ".join)
@pytest.mark.parametrize("bias", [False, True])
def test_the_kernel_agrees_with_the_reference(
    isa: str, types: tuple[DType, KvDType], bias: bool
) -> None:
    plan = plan_of("cac", 4, types=types, bias=bias)
    groups = len(plan.kv_groups)
    tokens, other = tokens_of(1, 90), tokens_of(2, 20)
    steps = [
        [Chunk(tokens, 0, 50, [3, 1, 7], rows=range(50)), Chunk(other, 0, 1, [2])],
        [Chunk(other, 1, 20, [2], rows=range(1, 20)), Chunk(tokens, 50, 51, [3, 1, 7])],
        [Chunk(tokens, 51, 90, [3, 1, 7], rows=range(51, 90))],
    ]
    got, expected = (
        np.concatenate([e.run(in_groups(step_of(s), groups, 10)).logits.copy() for s in steps])
        for e in (executor_of(plan, "cpu", isa=isa), executor_of(plan, "reference"))
    )
    exact = types == ("float32", "float32")
    tolerance = 2e-5 if exact else {"bfloat16": 6e-2, "float16": 3e-3}.get(types[0], 3e-2)
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_blocks_of_a_prefix_are_enough(backend: str) -> None:
    """A sequence that goes on behind another's blocks has its bits."""
    plan = plan_of("ccac", kernel=9)
    executor, groups = executor_of(plan, backend), len(plan.kv_groups)
    tokens = tokens_of(1, 90)

    def run(*chunks: Chunk) -> NDArray[np.float32]:
        logits = executor.run(in_groups(step_of(chunks), groups, 15)).logits
        return np.array(logits)

    run(Chunk(tokens, 0, 90, [3, 1, 7]))
    expected = run(Chunk(tokens, 0, 90, [4, 5, 6], rows=range(64, 90)))
    again = run(Chunk(tokens, 64, 90, [3, 1, 8], rows=range(64, 90)))
    np.testing.assert_array_equal(again, expected)
    executor.close()


def test_rows_of_a_tree_see_their_ancestors() -> None:
    plan = plan_of(taken_back=None)
    executor, groups = executor_of(plan, "reference"), len(plan.kv_groups)
    known, drafted = tokens_of(1, 33), tokens_of(2, 6)
    parents = (-1, 0, 0, 1, 2, 4)

    def run(step: Any) -> NDArray[np.float32]:
        return np.array(executor.run(in_groups(step, groups, 15)).logits)

    def path(row: int) -> list[int]:
        return [] if row < 0 else [*path(parents[row]), row]

    sequence = Accepted(known, [3, 1, 7])
    run(step_of([Chunk(known, 0, 33, [3, 1, 7])]))
    tree = sequence.branches(drafted, parents)
    rows = run(tree_step([tree]))
    for row in range(6):
        run(step_of([Chunk(known, 0, 33, [4, 5, 6])]))
        line = np.concatenate([known, drafted[path(row)]])
        alone = run(step_of([Chunk(line, 33, len(line), [4, 5, 6])]))
        np.testing.assert_array_equal(rows[row], alone[-1])
    executor.close()


@needs_native
def test_the_native_executor_runs_no_branches() -> None:
    plan = plan_of(taken_back=None)
    executor, groups = executor_of(plan, "cpu"), len(plan.kv_groups)
    sequence = Accepted(tokens_of(1, 3), [3])
    line = sequence.branches(tokens_of(2, 3), (-1, 0, 1))
    executor.run(in_groups(tree_step([line]), groups, 15))
    tree = sequence.branches(tokens_of(2, 3), (-1, 0, 0))
    with pytest.raises(ValueError, match="convolutions run no draft trees, and sequence 0"):
        executor.run(in_groups(tree_step([tree]), groups, 15))
    executor.close()


@pytest.mark.parametrize("window", [2, 3, 4, 9, 16])
@pytest.mark.parametrize("back", [1, 2, 5, 6, 7, 9, 17, 33, 64])
def test_rows_that_are_read_again_have_not_been_overwritten(window: int, back: int) -> None:
    rows = kept_rows(window, back)
    assert rows <= BLOCK_SIZE
    assert kept_rows(window, None) == BLOCK_SIZE
    for end in range(1, 130):
        for taken in range(min(back, end) + 1):
            held: dict[tuple[int, int], int] = {}
            for place in range(end):
                held[place // BLOCK_SIZE, place % BLOCK_SIZE % rows] = place
            for place in range(max(end - taken - window + 1, 0), end - taken):
                assert held[place // BLOCK_SIZE, place % BLOCK_SIZE % rows] == place


CACHE = {"kv_groups": 1, "kv_parts": 1, "kv_part_bytes": 8 * 32 * 4}
ROWS = CACHE | {"kv_layers": [(1, 32, 0, 0, 0, 0, 8)]}


@pytest.fixture(params=VARIANTS)
def module(request: pytest.FixtureRequest) -> Any:
    return native.load(request.param)


@pytest.mark.parametrize(
    "layer",
    [
        (2, 32, 0, 0, 0, 0, 8),
        (1, 32, 0, 0, 0, 4, 8),
        (1, 32, 0, 0, 0, 0, 33),
        (1, 32, 0, 0, 0, 0, -1),
        (1, 33, 0, 0, 0, 0, 8),  # more than the part has
    ],
)
def test_a_cache_of_rows_that_cannot_be(module: Any, layer: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make(module, **ROWS | {"kv_layers": [layer]})


def test_arguments_that_cannot_be(module: Any) -> None:
    executor = make(module, **ROWS)
    buffers = Buffers(executor)
    x, out, narrow = buffers.add(), buffers.add(), buffers.add(16)
    selected, half = buffers.add(rows="S"), buffers.add(elem="bfloat16")
    taps, bias = executor.add_constant(bytes(3 * 32 * 4)), executor.add_constant(bytes(32 * 4))
    usual = {"layer": 0, "x": x, "out": out, "taps": taps, "bias": bias, "kernel": 3}
    executor.append_short_conv(**usual)
    executor.append_short_conv(**usual | {"bias": None})
    for changes, why in [
        ({"layer": 1}, "no such KV layer"),
        ({"x": narrow}, "not of one width"),
        ({"out": narrow}, "not of one width"),
        ({"out": x}, "same memory"),
        ({"x": selected}, "token rows"),
        ({"out": half}, "element type"),
        ({"kernel": 4}, "bytes where"),
        ({"kernel": 1}, "2 to 16 taps"),
        ({"kernel": 17}, "2 to 16 taps"),
        ({"kernel": 9}, "as many rows in each block"),
        ({"bias": taps}, "bytes where"),
        ({"taps": 7}, "no such constant"),
    ]:
        with pytest.raises(ValueError, match=why):
            executor.append_short_conv(**usual | changes)
    with pytest.raises(ValueError, match="no keys"):
        executor.append_kv_write(layer=0, k=x, v=x)
    heads = make(module, **CACHE | {"kv_part_bytes": 2**14, "kv_layers": [(1, 32, 0, 0, 0, 0, 0)]})
    buffers = Buffers(heads)
    usual |= {"x": buffers.add(), "out": buffers.add(), "bias": None}
    usual["taps"] = heads.add_constant(bytes(3 * 32 * 4))
    with pytest.raises(ValueError, match="cached rows"):
        heads.append_short_conv(**usual)
