"""Constants of a machine: those that were put into observations come out of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.sized_models import shape

from penstock.errors import ConfigError
from penstock.plan.costs import PlanCosts, StepSize
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.quant import GridScheme, Quantization
from penstock.sizing.machine_times import (
    FittedTime,
    MachineTimes,
    OpObservation,
    Pace,
    StepObservation,
)

TRUE = MachineTimes(
    op=1e-6,
    product_column=3e-10,
    paces=(
        Pace("bfloat16", (1, 8, 64), (60e-12, 70e-12, 300e-12)),
        Pace("int8", (1, 8, 64), (30e-12, 35e-12, 150e-12)),
    ),
    attention=(8e-10, 7e-11, 6e-12, 2e-10),
    cache_column=(4e-10, 5e-10),
    row_column=7e-11,
    step=3e-4,
    sequence=4e-6,
)


def step(sequences: int, tokens: int, context: int) -> StepSize:
    """So many sequences that compute their last ``tokens``."""
    positions = [np.arange(context - tokens, context, dtype=np.int32)] * sequences
    lens = np.full(sequences, context, np.int32)
    return StepSize(sequences * tokens, sequences, sequences, lens, np.concatenate(positions))


SIZES = (step(1, 1, 500), step(1, 1, 40), step(8, 1, 30), step(1, 64, 64), step(1, 64, 600))


def costs(name: str) -> PlanCosts:
    quantization = Quantization(None, GridScheme(8))
    return PlanCosts.of(fuse(lower(shape(name), quantization=quantization)))


def observations(noise: float = 0.0) -> list[OpObservation]:
    generator = np.random.default_rng(0)
    return [
        OpObservation(
            each, size, TRUE.op_seconds(each, size) * (1 + noise * generator.standard_normal())
        )
        for name in ("qwen3-0.6b", "llama-3.2-1b")
        for each, _ in costs(name).counts
        for size in SIZES
    ]


STEPS = [StepObservation(size, 3e-4 + 4e-6 * size.sequences) for size in SIZES]


def test_constants_are_found_again() -> None:
    found = MachineTimes.fit(observations(), STEPS)
    pairs = (
        (found.op, TRUE.op),
        (found.product_column, TRUE.product_column),
        (found.row_column, TRUE.row_column),
        (found.step, TRUE.step),
        (found.sequence, TRUE.sequence),
        *zip(found.attention, TRUE.attention, strict=True),
        *zip(found.cache_column, TRUE.cache_column, strict=True),
    )
    for value, true in pairs:
        assert value == pytest.approx(true, rel=0.01)
    # The output matrix has few rows in every step: its pace is of these alone.
    floats = found.pace("bfloat16")
    assert floats.seconds == pytest.approx(TRUE.pace("bfloat16").seconds, rel=0.01)
    assert found.pace("int8").rows == (1, 8)


def test_noise_leaves_predictions_close_and_no_constant_negative() -> None:
    found = MachineTimes.fit(observations(noise=0.1), STEPS)
    assert min(*found.attention, found.op, found.product_column, *found.cache_column) >= 0
    for size in SIZES:
        predicted, true = (
            FittedTime(times, costs("llama-3.2-1b")).seconds(size) for times in (found, TRUE)
        )
        assert predicted == pytest.approx(true, rel=0.1)


def test_paces_are_straight_between_rows_and_in_proportion_beyond() -> None:
    pace = Pace("int8", (1, 8, 64), (30.0, 37.0, 150.0))
    assert [pace.at(rows) for rows in (1, 4, 8, 64, 128)] == [30, 33, 37, 150, 300]


def test_many_rows_are_at_most_as_slow_as_several_products_of_fewer() -> None:
    """Ops of 64 rows that lost their turn to other work and took ten times as long."""
    disturbed = [
        replace(each, seconds=each.seconds * 10)
        if each.demand.work == "product" and each.demand.count(each.size) == 64
        else each
        for each in observations()
    ]
    pace = MachineTimes.fit(disturbed, STEPS).pace("bfloat16")
    assert pace.seconds[2] <= 8 * pace.seconds[1] * 1.0001


def test_forms_that_were_not_measured_are_refused() -> None:
    product = next(each for each, _ in costs("qwen3-0.6b").counts if each.work == "product")
    with pytest.raises(ConfigError, match=r"weights in int4 were not measured.*bfloat16, int8"):
        TRUE.op_seconds(replace(product, form="int4"), SIZES[0])


def test_experts_are_read_as_far_as_tokens_need_them() -> None:
    product = next(each for each, _ in costs("qwen3-0.6b").counts if each.work == "product")
    mixed = replace(product, experts=8, chosen=2, columns=0)
    one = TRUE.op_seconds(mixed, step(1, 1, 10)) - TRUE.op
    assert one == pytest.approx(2 * product.multiply_adds * 60e-12)
