"""Low-rank additions: the CPU against the reference, rows of every kind, and steps that are
refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.adapted_plans import (
    LIMITS,
    STEP,
    USED,
    adapted,
    check_against,
    check_bits,
    check_refusals,
    fill_slots,
    with_factors,
)
from support.needs import needs_native
from support.tiny_plans import broken, dummy_weights, make_spec

from penstock.backends.cpu.bind import bind
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.interface.executor import Executor, run
from penstock.models.spec import DType
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower

pytestmark = needs_native


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Executor, Executor, float]]:
    """A CPU executor and a reference one, with an adapter in each slot, and how near they are."""
    dtype: DType = request.param
    plan, weights = adapted(dtype)
    made, reference = bind(plan, weights, LIMITS), ReferenceExecutor(plan, weights, LIMITS)
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
    made, reference, _ = both
    for executor in (made, reference):
        check_refusals(executor)


def test_no_room(both: tuple[Executor, Executor, float]) -> None:
    spec = make_spec()
    plain = bind(fuse(lower(spec, "float32")), dummy_weights(spec, 3, "float32"), LIMITS)
    assert plain.adapters is None
    with pytest.raises(ValueError, match="room for none"):
        run(plain, broken(STEP, adapters=USED))
    plain.close()


def test_factors_of_balanced_matrices() -> None:
    """Columns and rows are multiplied as an adapter is written."""
    plan, weights = with_factors(adapted("float32")[0])
    made, reference = bind(plan, weights, LIMITS), ReferenceExecutor(plan, weights, LIMITS)
    fill_slots(plan, made, reference)
    check_against(reference, made, 1e-4)
    made.close()
