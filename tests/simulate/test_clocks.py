"""Clocks of steps: those of plans beside sizing's own times, and the fit of a measured model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cache.geometry import Chunk, Window
from penstock.plan.costs import StepSize, seen
from penstock.simulate.clock import StepShape, decode_reads, seen_by
from penstock.simulate.plan_clock import PlanClock, windows_of
from penstock.simulate.step_times import MeasuredClock, ObservedStep, StepTimes, WindowShare
from penstock.sizing.catalogue import Catalogue
from penstock.sizing.model import Precision, SizedModel
from penstock.sizing.roofline import CostTable, Roofline
from penstock.weights.model_folder import load_model_spec

SHAPE = Path(__file__).parents[2] / "benchmarks/configs/qwen3-0.6b"


def sized() -> tuple[SizedModel, Precision]:
    spec = load_model_spec(SHAPE)
    return SizedModel(spec), Precision("none", spec.dtype)


def step_size(parts: list[tuple[int, int]]) -> StepSize:
    """Sequences that compute tokens ``start .. end - 1``, and a logit each."""
    positions = np.concatenate([np.arange(a, b, dtype=np.int32) for a, b in parts])
    lens = np.array([b for _, b in parts], np.int32)
    return StepSize(len(positions), len(parts), len(parts), lens, positions)


def shape_of(parts: list[tuple[int, int]], windows: tuple[Window | None, ...]) -> StepShape:
    each = [[seen_by(window, a, b) for a, b in parts] for window in windows]
    return StepShape(
        sum(b - a for a, b in parts),
        len(parts),
        len(parts),
        sum(b - a > 1 for a, b in parts),
        tuple(float(sum(read for read, _ in found)) for found in each),
        tuple(float(sum(pair for _, pair in found)) for found in each),
    )


def test_the_clock_of_a_plan_is_its_step_time() -> None:
    model, precision = sized()
    costs = model.plan("gpu", precision, 512).costs
    time = Roofline.of(CostTable(costs), Catalogue.load().find("L4"))
    clock = PlanClock.of(time, windows_of(costs))
    for parts in ([(0, 200)], [(9, 10)], [(40, 41), (7, 8), (0, 33)], [(1000, 1001)] * 16):
        expected = time.seconds(step_size(parts))
        assert clock.seconds(shape_of(parts, clock.windows)) == pytest.approx(expected, rel=1e-9)
    many = clock.decoding(2, decode_reads(clock.windows, [10, 30], 5))
    for later, seconds in enumerate(many):
        parts = [(9 + later, 10 + later), (29 + later, 30 + later)]
        assert seconds == pytest.approx(time.seconds(step_size(parts)), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([None, 1, 4, 9, Chunk(1), Chunk(5), Chunk(8)]),
    st.integers(0, 30),
    st.integers(1, 30),
)
def test_what_rows_see(window: Window | None, start: int, count: int) -> None:
    lens = np.arange(start + 1, start + count + 1, dtype=np.int32)
    found = seen(lens, window)
    assert seen_by(window, start, start + count) == (int(found[-1]), int(found.sum()))


def test_a_fit_finds_the_constants_of_a_machine() -> None:
    windows = (WindowShare(None, False, 0.75), WindowShare(8, False, 0.25))
    true = StepTimes(
        tokens=(1, 8, 64, 200),
        rows=(1e-3, 1.5e-3, 4e-3, 9e-3),
        sequence=2e-5,
        sample=5e-6,
        chunk=1e-4,
        read=1e-7,
        pair=3e-8,
        behind=2e-6,
        windows=windows,
        error=0.0,
    )
    clock = MeasuredClock(true)
    steps = [[(context, context + 1)] * count for count in (1, 8) for context in (5, 90, 400)] + [
        [(start, start + count)] for count in (8, 64, 200) for start in (0, 100, 333)
    ]
    steps += [[(start, start + 57), *[(70, 71)] * 7] for start in (0, 256)]
    steps += [[(0, 33), (0, 31)], [(5, 6)] * 64, [(900, 901)] * 64, [(0, 1)] * 8]
    shapes = [shape_of(parts, clock.windows) for parts in steps]
    shapes = [
        shape._replace(logits=0) if i % 3 == 1 and shape.sequences == 1 else shape
        for i, shape in enumerate(shapes)
    ]
    observed = []
    for i, shape in enumerate(shapes):
        before = (0, 7, 300, 90)[i % 4]
        seconds = clock.seconds(shape) + clock.behind(before, shape.tokens)
        observed.append(ObservedStep(shape, before, seconds))
    found = StepTimes.fit(observed, windows)
    assert found.tokens == true.tokens
    assert found.error < 1e-6
    for shape in shapes:
        assert MeasuredClock(found).seconds(shape) == pytest.approx(clock.seconds(shape), rel=1e-5)
    assert found.of_rows(300) == pytest.approx(9e-3 + 5e-3 * 100 / 136, rel=1e-4)


def test_beyond_what_was_measured_no_short_stretch_is_drawn_out() -> None:
    windows = (WindowShare(None, False, 1.0),)
    # 25 us a token, and one outlier right before the end; all in chunks of prompts alone.
    counts = [1, 16, 64, 128, 256, 400, 482, 512]
    observed = [
        ObservedStep(
            StepShape(n, 0, 0, 0, (0.0,), (0.0,)), 0, (1e-3 + 25e-6 * n) * (0.9 if n == 482 else 1)
        )
        for n in counts
    ]
    found = StepTimes.fit(observed, windows)
    assert found.tokens == (1, 16, 64, 128, 256, 400, 512)
    assert found.of_rows(2048) == pytest.approx(1e-3 + 25e-6 * 2048, rel=0.15)
    # A file of before may have such a stretch.
    old = msgspec.structs.replace(
        found, tokens=(1, 256, 482, 512), rows=(1e-3, 7.4e-3, 10.4e-3, 13.8e-3)
    )
    assert old.of_rows(512) == pytest.approx(13.8e-3)
    assert old.of_rows(2048) == pytest.approx(1e-3 + 25e-6 * 2048, rel=0.03)
