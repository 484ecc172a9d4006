"""What stages of a measured model take, beside the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sized_models import shape

from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.plan.stages import cut
from penstock.simulate.clock import StepShape
from penstock.simulate.stage_times import stage_times
from penstock.simulate.step_times import MeasuredClock, StepTimes, window_shares


def divided(name: str, count: int) -> tuple[Plan, list[Plan]]:
    primitive = lower(shape(name))
    whole = fuse(primitive)
    return whole, [stage.plan for stage in cut(primitive, whole, count)]


def measured(plan: Plan) -> StepTimes:
    return StepTimes(
        tokens=(1, 8, 64, 512),
        rows=(10e-3, 11e-3, 15e-3, 70e-3),
        sequence=2e-5,
        sample=5e-6,
        chunk=1e-4,
        read=1e-7,
        pair=3e-8,
        behind=2e-6,
        windows=window_shares(plan),
        error=0.0,
    )


PLANS = {
    (name, count): divided(name, count)
    for name, count in (("gemma-3-1b", 3), ("qwen3-0.6b", 2), ("qwen3-0.6b", 28))
}
"""A model with windows, and one that is cut in two and into single layers."""


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PLANS)), st.integers(1, 900), st.integers(1, 64), st.data())
def test_stages_take_what_the_whole_does(
    which: tuple[str, int], tokens: int, sequences: int, data: st.DataObject
) -> None:
    whole, stages = PLANS[which]
    times = measured(whole)
    clock = MeasuredClock(times)
    parts = [MeasuredClock(each) for each in stage_times(times, whole, stages)]
    assert all(part.windows == clock.windows for part in parts)
    reads = tuple(data.draw(st.floats(0, 1e6)) for _ in clock.windows)
    step = StepShape(
        tokens, data.draw(st.integers(0, 64)), sequences, data.draw(st.integers(0, 4)), reads, reads
    )
    assert sum(part.seconds(step) for part in parts) == pytest.approx(clock.seconds(step))
    assert sum(part.behind(200, 9) for part in parts) == pytest.approx(clock.behind(200, 9))
    each = [[float(count)] * 3 for count in reads]
    together = [sum(found) for found in zip(*(p.decoding(7, each) for p in parts), strict=True)]
    assert together == pytest.approx(clock.decoding(7, each))
    assert all(part.seconds(step) > 0 for part in parts)


def test_the_last_stage_has_the_output_matrix_in_every_step() -> None:
    """Qwen3 0.6B's shape: 28 layers of 15,728,640 weights, and 151,936 rows of 1,024."""
    whole, stages = PLANS["qwen3-0.6b", 2]
    times = measured(whole)
    first, last = stage_times(times, whole, stages)
    layers, head = 28 * 15_728_640, 151_936 * 1024
    # What follows attention in the last layer is computed for selected rows alone, too.
    selected = head + 2048 * 1024 + 3 * 1024 * 3072
    once = 10e-3 * selected / (layers + head)
    assert sum(each.rows[0] for each in (first, last)) == pytest.approx(10e-3)
    assert last.rows[0] >= once
    assert first.rows[3] / first.rows[0] == pytest.approx((70e-3 - once) / (10e-3 - once))
    assert (first.sample, last.sample) == (0.0, 5e-6)
