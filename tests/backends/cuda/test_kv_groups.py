"""Groups of layers on the device: tables of each, one memory for the layers of a place."""

from __future__ import annotations

from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.windowed import ALIKE, NUM_BLOCKS, SIZES, A, B, Driver, one_group, plan_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.buckets import Bucket  # noqa: E402
from penstock.backends.cuda.executor import CudaExecutor  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.cache.geometry import BLOCK_SIZE  # noqa: E402
from penstock.errors import ConfigError  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.interface.step_builder import Tree  # noqa: E402
from penstock.plan.plan import Plan  # noqa: E402
from penstock.scheduler.accepted_drafts import moves_of  # noqa: E402
from penstock.scheduler.draft import Draft  # noqa: E402
from penstock.scheduler.output import ScheduledSequence  # noqa: E402
from penstock.weights.dummy import DummyWeights  # noqa: E402

LIMITS = Limits(
    num_blocks=NUM_BLOCKS, max_tokens=100, max_logit_rows=100, max_sequences=4, threads=1
)


def executor_of(plan: Plan, device: Any, limits: Limits = LIMITS) -> CudaExecutor:
    return bind(plan, DummyWeights(plan.weights, 3, plan.weight_dtype), limits, device)


def story(plan: Plan, executor: Any) -> list[Any]:
    """A prompt in parts, longer than the windows, a fork that copies blocks, and decode."""
    driver = Driver(plan, executor)
    a = driver.start()
    reported = [driver.run((a, A[:70])), driver.run((a, A[70:130]))]
    c = driver.fork(a)
    reported += [driver.run((c, B[i : i + 1]), (a, A[130 + i : 131 + i])) for i in range(3)]
    return reported


@pytest.mark.slow
def test_groups_and_windows_change_no_bit(device: Any) -> None:
    plan = plan_of(ALIKE)
    assert plan.kv_groups.windows == (None, 40, 40, 9)
    executor = executor_of(plan, device)
    assert len(executor._caches) == 1
    seen = story(plan, executor)
    reference = ReferenceExecutor(plan, DummyWeights(plan.weights, 3, "float32"), LIMITS)
    for got, wanted in zip(seen, story(plan, reference), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)
    with one_group():
        executor = executor_of(plan, device)
        assert len(executor._caches) == 4
        expected = story(plan, executor)
    for got, wanted in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.slow
def test_a_padded_step_has_the_tables_of_every_group(device: Any) -> None:
    plan = plan_of(ALIKE)
    executor = executor_of(plan, device)
    driver = Driver(plan, executor)
    driver.run((driver.start(), A[:50]))
    step = driver.step((0, A[50:51]))
    expected = executor.run(step).logits.copy()
    assert executor._program is not None
    results = executor._program.run(executor._write_padded(step, Bucket(4, 4)))
    np.testing.assert_array_equal(results.logits[:1].cpu().numpy(), expected)


def test_tables_of_every_group_are_checked(device: Any) -> None:
    plan = plan_of(ALIKE)
    executor = executor_of(plan, device)
    driver = Driver(plan, executor)
    step = driver.step((driver.start(), A[:3]))
    with pytest.raises(ValueError, match="tables of 3 groups of layers where 4 are cached"):
        executor.run(replace(step, groups=step.groups[:3]))
    for name, value, reported in (
        ("slots", -1, "slot -1"),
        ("block_ids", NUM_BLOCKS, f"block id {NUM_BLOCKS}"),
        ("block_starts", 2, "block_starts"),
    ):
        groups = list(step.groups)
        spoilt = getattr(groups[2], name).copy()
        spoilt[-1] = value
        groups[2] = groups[2]._replace(**{name: spoilt})
        with pytest.raises(ValueError, match=reported):
            executor.run(replace(step, groups=tuple(groups)))


def test_layers_of_several_sizes_with_windows_are_refused(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"of different sizes.*choose --backend cpu"):
        executor_of(plan_of(SIZES), device)


@pytest.mark.slow
def test_a_step_moves_the_slots_of_whole_trees_in_every_group(device: Any) -> None:
    """Trees fill a step, and all of each but its first row is accepted, a slot too late."""
    plan = plan_of(ALIKE)
    limits = replace(LIMITS, max_tokens=12, max_logit_rows=12, max_sequences=2)
    known, rows = 5, limits.max_tokens // limits.max_sequences
    texts = [array("i", A[40 * i : 40 * i + known + rows]) for i in range(limits.max_sequences)]
    parents = array("i", [-1, -1, *range(1, rows - 2)])

    executor = executor_of(plan, device, limits)
    driver = Driver(plan, executor)
    sequences = [driver.start() for _ in texts]
    driver.run(*((i, text[:known]) for i, text in enumerate(texts)))
    drafts = [Draft(array("i", [7, *text[known + 1 : -1]]), parents=parents) for text in texts]
    parts = [
        (i, [texts[i][known], *draft.token_ids]) for i, draft in zip(sequences, drafts, strict=True)
    ]
    step = driver.step(*parts, trees=[Tree(i, 1, parents) for i in sequences])
    assert step.num_tokens == limits.max_tokens
    executor.run(step)
    moves = []
    for i, draft in enumerate(drafts):
        owner: Any = SimpleNamespace(table=driver.tables[i])
        verified = ScheduledSequence(owner, known, rows, rows, (), draft=draft)
        moves += moves_of(verified, draft.token_ids[1:], BLOCK_SIZE)
        driver.cache.commit(driver.tables[i], texts[i], known + rows - 1)
    assert len(moves) == len(plan.kv_groups) * len(texts) * (rows - 2) > limits.max_tokens
    last = [(i, text[-1:]) for i, text in enumerate(texts)]
    seen = executor.run(driver.step(*last, slot_moves=moves)).logits

    reference = ReferenceExecutor(plan, DummyWeights(plan.weights, 3, "float32"), limits)
    driver = Driver(plan, reference)
    sequences = [driver.start() for _ in texts]
    driver.run(*((i, text[:-1]) for i, text in enumerate(texts)))
    np.testing.assert_allclose(seen, driver.run(*last), rtol=2e-4, atol=2e-4)


def test_more_moves_than_every_group_has_tokens_are_refused(device: Any) -> None:
    plan = plan_of(ALIKE)
    executor = executor_of(plan, device)
    driver = Driver(plan, executor)
    most = len(plan.kv_groups) * LIMITS.max_tokens
    step = driver.step((driver.start(), A[:3]), slot_moves=[(0, 1)] * (most + 1))
    with pytest.raises(ValueError, match=f"at most {most} slots, not {most + 1}"):
        executor.run(step)
