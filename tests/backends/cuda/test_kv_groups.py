"""Groups of layers on the device: tables of each, one memory for the layers of a place."""

from __future__ import annotations

from dataclasses import replace
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
from penstock.errors import ConfigError  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.plan.plan import Plan  # noqa: E402
from penstock.weights.dummy import DummyWeights  # noqa: E402

LIMITS = Limits(
    num_blocks=NUM_BLOCKS, max_tokens=100, max_logit_rows=100, max_sequences=4, threads=1
)


def executor_of(plan: Plan, device: Any) -> CudaExecutor:
    return bind(plan, DummyWeights(plan.weights, 3, plan.weight_dtype), LIMITS, device)


def story(plan: Plan, executor: Any) -> list[Any]:
    """A prompt in parts, longer than the windows, a fork that copies blocks, and decode."""
    driver = Driver(plan, executor)
    a = driver.start()
    reported = [driver.run((a, A[:70])), driver.run((a, A[70:130]))]
    c = driver.fork(a)
    reported += [driver.run((c, B[i : i + 1]), (a, A[130 + i : 131 + i])) for i in range(3)]
    return reported


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
