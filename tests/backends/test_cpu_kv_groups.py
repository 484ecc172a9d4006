"""Layers with windows and of several sizes in the native cache: pages, tables by group, edits."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.needs import needs_native
from support.tiny_plans import make_spec, tokens_of

from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor
from penstock.backends.cpu.kv_pages import KvPages
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import BLOCK_SIZE, KvDType
from penstock.cache.kv_cache import BlockCopy, KvCache
from penstock.errors import ConfigError
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.interface.step_builder import build_step
from penstock.models.spec import DType, LayerSpec, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.kv_groups import KvGroup, KvGroups, KvPlace
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.weights.dummy import DummyWeights

pytestmark = needs_native
LIMITS = Limits(num_blocks=60, max_tokens=64, max_logit_rows=64, max_sequences=4, threads=3)
A, B = tokens_of(1, 300), tokens_of(2, 120)


def spec_of(*kinds: tuple[int, int, int | None]) -> ModelSpec:
    """Layers of (KV heads, head size, window)."""
    spec = make_spec(bias=True)
    base = spec.layers[0]

    def layer(kv_heads: int, dim: int, window: int | None) -> LayerSpec:
        rope = replace(base.attention.rope, dim=dim)
        attention = replace(
            base.attention, num_kv_heads=kv_heads, head_dim=dim, window=window, rope=rope
        )
        return replace(base, attention=attention)

    return replace(spec, layers=tuple(layer(*kind) for kind in kinds))


ALIKE = spec_of((2, 16, None), (2, 16, 40), (2, 16, 40), (2, 16, 9))
HEADS = spec_of((1, 16, None), (2, 16, 40), (1, 16, None), (2, 16, 40))
SIZES = spec_of((1, 32, None), (2, 16, 40), (1, 48, None), (3, 16, 40))


def plan_of(spec: ModelSpec, dtype: DType = "float32", kv: KvDType | None = None) -> Plan:
    return fuse(lower(spec, dtype, 512, kv_dtype=kv))


class Driver:
    """Sequences over an executor, with the books of a cache of the plan's groups."""

    def __init__(self, plan: Plan, executor: Any) -> None:
        self.executor = executor
        self.cache = KvCache(LIMITS.num_blocks, BLOCK_SIZE, windows=plan.kv_groups.windows)
        self.tables: list[BlockTable] = []
        self.copies: list[BlockCopy] = []

    def start(self) -> int:
        table = BlockTable()
        assert self.cache.begin(table, None, 1, 1)
        self.tables.append(table)
        return len(self.tables) - 1

    def fork(self, parent: int) -> int:
        self.tables.append(self.cache.fork(self.tables[parent]))
        return len(self.tables) - 1

    def step(self, *parts: tuple[int, Sequence[int]], **more: Any) -> StepInput:
        """Parts are a sequence and its next tokens, all of which get logits."""
        tables = [self.tables[i] for i, _ in parts]
        starts = [table.num_committed for table in tables]
        for table, start, (_, tokens) in zip(tables, starts, parts, strict=True):
            assert self.cache.extend(table, start, start + len(tokens), self.copies)
        step = build_step(
            [array("i", list(tokens)) for _, tokens in parts],
            starts,
            list(zip(*[table.blocks for table in tables], strict=True)),
            block_copies=self.copies,
            **more,
        )
        self.copies = []
        return step

    def run(self, *parts: tuple[int, Sequence[int]]) -> NDArray[np.float32]:
        step = self.step(*parts)
        logits = self.executor.run(step).logits.copy()
        for i, tokens in parts:
            table = self.tables[i]
            end = table.num_committed + len(tokens)
            self.cache.commit(table, array("i", [0] * end), end)
        self.cache.check_integrity()
        return logits


def story(plan: Plan, executor: Any) -> list[NDArray[np.float32]]:
    """Two prompts in parts, a fork that copies blocks, and rows of decode."""
    driver = Driver(plan, executor)
    a, b = driver.start(), driver.start()
    told = [driver.run((a, A[:50]), (b, B[:10])), driver.run((b, B[10:60]))]
    for first in range(50, 210, 40):
        told.append(driver.run((a, A[first : first + 40]), (b, B[60:61])))
    c = driver.fork(a)
    told.append(driver.run((c, [7]), (a, A[210:211]), (b, [9])))
    told += [driver.run((a, A[i : i + 1]), (c, B[i - 180 : i - 179])) for i in range(211, 250)]
    return told


def native(plan: Plan) -> CpuExecutor:
    return bind(plan, DummyWeights(plan.weights, 3, plan.weight_dtype), LIMITS)


def kept(plan: Plan) -> KvGroups:
    """One group of all layers, of which nothing is given back."""
    sizes = [layer.block_bytes(plan.kv_dtype) for layer in plan.kv_layers]
    places = tuple(KvPlace(0, i, sum(sizes[:i])) for i in range(len(sizes)))
    return KvGroups((KvGroup(None, tuple(range(len(sizes)))),), sum(sizes), places)


@pytest.mark.parametrize("spec", [ALIKE, HEADS, SIZES], ids=["alike", "heads", "sizes"])
@pytest.mark.parametrize(
    ("dtype", "kv"), [("float32", None), ("bfloat16", None), ("float32", "int8")]
)
def test_pages_and_windows_change_no_bit(spec: ModelSpec, dtype: DType, kv: Any) -> None:
    plan = plan_of(spec, dtype, kv)
    assert len(plan.kv_groups) > 1
    executor = native(plan)
    seen = story(plan, executor)
    executor.close()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Plan, "kv_groups", property(kept))
        executor = native(plan)
        expected = story(plan, executor)
        executor.close()
    for got, wanted in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("spec", [ALIKE, SIZES], ids=["alike", "sizes"])
def test_they_agree_with_the_reference(spec: ModelSpec) -> None:
    plan = plan_of(spec)
    executor = native(plan)
    reference = ReferenceExecutor(plan, DummyWeights(plan.weights, 3, "float32"), LIMITS)
    for got, wanted in zip(story(plan, executor), story(plan, reference), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)
    executor.close()


def test_layers_of_equal_size_have_their_blocks_one_behind_the_other() -> None:
    alike, sizes = KvPages.of(plan_of(ALIKE)), KvPages.of(plan_of(SIZES))
    assert alike.parts == 1 + max(part for _, _, _, part, _ in alike.layers)
    assert {offset for *_, offset in alike.layers} == {0}
    assert sizes.parts == 1
    assert sizes.part_bytes == plan_of(SIZES).kv_groups.page_bytes
    assert KvPages.of(replace(plan_of(ALIKE), kv_layers=())) == KvPages(0, 0, ())


def test_a_latent_cache_is_refused() -> None:
    plan = plan_of(ALIKE)
    latent = replace(plan, kv_layers=tuple(replace(x, value_dim=0) for x in plan.kv_layers))
    with pytest.raises(ConfigError, match="keys and values differ in size"):
        native(latent)


@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"slots": -1}, "slot -1"),
        ({"slots": 1}, "where its blocks have"),
        ({"block_ids": 60}, "block id 60"),
        ({"block_starts": 2**20}, "block_starts"),
    ],
)
def test_tables_of_every_group_are_checked(group: int, changes: dict[str, int], told: str) -> None:
    plan = plan_of(ALIKE)
    executor = native(plan)
    driver = Driver(plan, executor)
    step = driver.step((driver.start(), A[:3]))
    groups = list(step.groups)
    for name, value in changes.items():
        spoilt = getattr(groups[group], name).copy()
        spoilt[-1] = value
        groups[group] = groups[group]._replace(**{name: spoilt})
    with pytest.raises(ValueError, match=told):
        executor.run(replace(step, groups=tuple(groups)))
    with pytest.raises(ValueError, match=r"tables of 2 groups of layers where \d are cached"):
        executor.run(replace(step, groups=step.groups[:2]))
    executor.close()


@pytest.mark.parametrize("spec", [ALIKE, HEADS], ids=["alike", "heads"])
def test_slots_are_moved_in_every_layer_of_their_page(spec: ModelSpec) -> None:
    """A token that was computed two slots too late is moved to where it belongs."""
    plan = plan_of(spec)
    executor = native(plan)
    plain, moved = Driver(plan, executor), Driver(plan, executor)
    a = plain.start()
    plain.run((a, A[:20]))
    expected = plain.run((a, A[20:22]))[1:]
    b = moved.start()
    moved.run((b, A[:20]))
    step = moved.step((b, [5, 6, int(A[20])]))
    parents, positions = np.r_[-1:19].astype(np.int32), step.positions.copy()
    parents = np.array([-1, -1, -1], np.int32)
    positions[:] = 20
    executor.run(replace(step, tree_parents=parents, positions=positions))
    moves = []
    for blocks in moved.tables[b].blocks:
        first = blocks[0] * BLOCK_SIZE
        moves.append((first + 22, first + 20))
    moved.cache.commit(moved.tables[b], array("i", [0] * 21), 21)
    step = moved.step((b, A[21:22]), slot_moves=moves)
    np.testing.assert_array_equal(executor.run(step).logits, expected)
    executor.close()


def test_heads_of_several_sizes_are_not_moved() -> None:
    plan = plan_of(SIZES)
    executor = native(plan)
    driver = Driver(plan, executor)
    step = driver.step((driver.start(), A[:3]), slot_moves=[(3, 2)])
    with pytest.raises(ValueError, match="heads differ in size"):
        executor.run(step)
    executor.close()
