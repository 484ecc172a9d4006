"""Low-rank additions on the GPU's kernels: against the reference, and rows in any company."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.adapted_plans import (  # noqa: E402
    LIMITS,
    TOKENS,
    adapted,
    check_against,
    check_bits,
    check_refusals,
    drawn,
    fill_slots,
    with_factors,
)
from support.tiny_plans import Chunk, broken, step_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.buckets import Bucket  # noqa: E402
from penstock.backends.cuda.executor import CudaExecutor  # noqa: E402
from penstock.backends.cuda.warm_up import warm_steps  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.interface.executor import Executor, Sampling  # noqa: E402
from penstock.models.spec import DType  # noqa: E402

SLOW = [pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("bfloat16", "float16")]
CLOSE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}


@pytest.fixture(scope="module", params=["float32", *SLOW])
def both(
    request: pytest.FixtureRequest, device: Any
) -> Iterator[tuple[CudaExecutor, Executor, float]]:
    """An executor on the GPU and a reference one, with an adapter in each slot, and how near they
    are."""
    dtype: DType = request.param
    plan, weights = adapted(dtype)
    made, reference = bind(plan, weights, LIMITS, device), ReferenceExecutor(plan, weights, LIMITS)
    fill_slots(plan, made, reference)
    yield made, reference, CLOSE[dtype]
    made.close()


def test_as_the_reference_does(both: tuple[CudaExecutor, Executor, float]) -> None:
    made, reference, close = both
    check_against(reference, made, close)


def test_a_row_has_its_bits_beside_any_others(both: tuple[CudaExecutor, Executor, float]) -> None:
    made, *_ = both
    check_bits(made)


def test_factors_of_balanced_matrices(device: Any) -> None:
    """Columns and rows are multiplied as an adapter is written."""
    plan, weights = with_factors(adapted("float32")[0])
    made, reference = bind(plan, weights, LIMITS, device), ReferenceExecutor(plan, weights, LIMITS)
    fill_slots(plan, made, reference)
    check_against(reference, made, 1e-4)
    made.close()


def test_steps_that_are_refused(both: tuple[CudaExecutor, Executor, float]) -> None:
    made, *_ = both
    check_refusals(made)


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of rows of padding, which hold anything
def test_a_padded_step_has_the_bits_of_a_launched_one(
    both: tuple[CudaExecutor, Executor, float],
) -> None:
    """What a graph replays: the same launches, whatever adapters there are and were before."""
    made, *_ = both
    chunks = [Chunk(TOKENS, 0, 9, [1]), Chunk(TOKENS, 0, 1, [2]), Chunk(TOKENS, 20, 21, [3])]
    for adapters in ([1, 0, 2], [-1, 2, 2], []):
        step = broken(step_of(chunks), adapters=adapters)
        expected = made.run(step).logits.copy()
        there = made._write_padded(step, Bucket(16, 4))
        assert made._program is not None
        logits = made._program.run(there).logits[:3].cpu().numpy()
        assert np.array_equal(logits, expected)


def test_a_written_slot_is_what_later_steps_read(
    both: tuple[CudaExecutor, Executor, float],
) -> None:
    """Those that were queued before still read what was there; a smaller adapter leaves nothing of
    the one before."""
    made, *_ = both
    plan, _ = adapted("float32")
    assert made.adapters is not None
    step = broken(step_of([Chunk(TOKENS, 0, 5, [1])]), adapters=[2])
    before = made.submit(step, Sampling(logits=True))
    kept = before.wait().result
    assert kept is not None
    first = kept.logits.copy()
    made.adapters.write(2, drawn(plan, 5, 3, "layers.0.q"))
    second = made.run(step).logits.copy()
    made.adapters.write(2, drawn(plan, 3, 17))
    assert np.array_equal(made.run(step).logits, first)
    made.adapters.write(1, drawn(plan, 5, 3, "layers.0.q"))
    assert np.array_equal(made.run(broken(step, adapters=[1])).logits, second)
    made.adapters.write(1, drawn(plan, 2, 5, "layers.1"))
    assert not np.array_equal(first, second)


def test_warming_up_launches_the_kernels(both: tuple[CudaExecutor, Executor, float]) -> None:
    """Though no step of it has an adapter."""
    made, *_ = both
    assert made.adapters is not None
    for step in warm_steps([1, 96], made._bounds, trees=False):
        assert all(len(tiles) for tiles in made.adapters.rows.plan(step)[::2])


def test_no_tensor_outlives_an_executor(device: Any) -> None:
    plan, weights = adapted("float32")
    executor = bind(plan, weights, LIMITS, device)
    assert executor.adapters is not None
    table = weakref.ref(next(iter(executor.adapters._downs.values())).slots.weights)
    executor.close()
    gc.collect()
    assert table() is None
    assert executor.adapters is None
