"""Low-rank additions on the GPU's kernels: against the reference, and rows in any company."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.adapted_plans import (  # noqa: E402
    LIMITS,
    adapted,
    check_against,
    check_bits,
    check_refusals,
    fill_slots,
)

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.interface.executor import Executor  # noqa: E402
from penstock.models.spec import DType  # noqa: E402


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def both(request: pytest.FixtureRequest, device: Any) -> Iterator[tuple[Executor, Executor, float]]:
    """An executor on the GPU and a reference one, with an adapter in each slot, and how near they
    are."""
    dtype: DType = request.param
    plan, weights = adapted(dtype)
    made, reference = bind(plan, weights, LIMITS, device), ReferenceExecutor(plan, weights, LIMITS)
    fill_slots(plan, made, reference)
    yield made, reference, {"float32": 1e-4, "bfloat16": 0.05}[dtype]
    made.close()


def test_as_the_reference_does(both: tuple[Executor, Executor, float]) -> None:
    made, reference, close = both
    check_against(reference, made, close)


def test_a_row_has_its_bits_beside_any_others(both: tuple[Executor, Executor, float]) -> None:
    made, *_ = both
    check_bits(made)


def test_steps_that_are_refused(both: tuple[Executor, Executor, float]) -> None:
    made, *_ = both
    check_refusals(made)
