"""Layers with windows and of several sizes in the native cache: pages, tables by group, edits."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.needs import needs_native
from support.windowed import ALIKE, HEADS, NUM_BLOCKS, SIZES, A, Driver, one_group, plan_of, story

from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor
from penstock.backends.cpu.kv_pages import KvPages
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.executor import Limits
from penstock.models.spec import DType, ModelSpec
from penstock.plan.plan import Plan
from penstock.weights.dummy import DummyWeights

pytestmark = needs_native
LIMITS = Limits(num_blocks=NUM_BLOCKS, max_tokens=64, max_logit_rows=64, max_sequences=4, threads=3)


def native(plan: Plan) -> CpuExecutor:
    return bind(plan, DummyWeights(plan.weights, 3, plan.weight_dtype), LIMITS)


@pytest.mark.thinned(3)
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
    with one_group():
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
    assert alike.parts == 1 + max(part for _, _, _, part, *_ in alike.layers)
    assert {offset for *_, offset, _ in alike.layers} == {0}
    assert sizes.parts == 1
    assert sizes.part_bytes == plan_of(SIZES).kv_groups.page_bytes
    assert KvPages.of(replace(plan_of(ALIKE), kv_layers=())) == KvPages(0, 0, ())


@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"slots": -1}, "slot -1"),
        ({"slots": 1}, "where its blocks have"),
        ({"block_ids": 60}, "block id 60"),
        ({"block_starts": 2**20}, "block_starts"),
    ],
)
def test_tables_of_every_group_are_checked(group: int, changes: dict[str, int], fault: str) -> None:
    plan = plan_of(ALIKE)
    executor = native(plan)
    driver = Driver(plan, executor)
    step = driver.step((driver.start(), A[:3]))
    groups = list(step.groups)
    for name, value in changes.items():
        spoilt = getattr(groups[group], name).copy()
        spoilt[-1] = value
        groups[group] = groups[group]._replace(**{name: spoilt})
    with pytest.raises(ValueError, match=fault):
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
