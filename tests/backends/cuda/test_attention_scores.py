"""Scores that are capped, that fall with distance, and that share their softmax with a sink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.attention_parts import Part, sequence  # noqa: E402
from support.cuda_attention import Shape, assert_close, launch, make, run  # noqa: E402

from penstock.backends.cuda.attention import Scores  # noqa: E402

# The interpreter is NumPy: it says so where infinities meet, as they do in rows that are not used.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


def make_scores(
    heads: int,
    device: Any,
    softcap: bool = True,
    slopes: bool = True,
    sinks: bool = True,
    slope_factor: float | None = None,
) -> Scores:
    generator = torch.Generator().manual_seed(heads)
    drawn = 5 * torch.rand(heads, generator=generator) - 1
    return Scores(
        3.0 if softcap else None,
        (2.0 ** -(1 + torch.arange(heads).float())).to(device) if slopes else None,
        drawn.to(device) if sinks else None,
        slope_factor,
    )


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (Shape(4, 2, 16, "float32"), (True, False, False)),
        (Shape(3, 3, 16, "bfloat16"), (False, True, False)),
        (Shape(4, 2, 50, "float32"), (False, False, True)),
        (Shape(7, 1, 16, "int8"), (True, True, True)),
        (Shape(4, 2, 16, "float32", 33), (True, True, True)),
        (Shape(4, 2, 16, "float16", 300), (False, True, True)),
    ],
)
def test_scores_as_the_op_defines_them(
    shape: Shape, options: tuple[bool, bool, bool], device: Any
) -> None:
    scores = make_scores(shape.heads, device, *options)
    ends = [(0, 1), (0, 33), (250, 257), (511, 513)]
    parts = [Part(sequence(shape, end, end), start, end) for start, end in ends]
    plain = run(device, shape, parts)
    for part, rows, without in zip(
        parts, run(device, shape, parts, scores=scores), plain, strict=True
    ):
        assert_close(shape, part, rows, scores)
        assert part.end == 1 or np.abs(rows - without).max() > 1e-3


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (Shape(3, 3, 16, "float32"), (False, True, False, 0.25)),
        (Shape(6, 2, 16, "int8", 70), (True, True, True, 0.5)),
    ],
)
def test_slopes_times_positions_are_rounded(
    shape: Shape, options: tuple[bool, bool, bool, float], device: Any
) -> None:
    """Positions from 257 on are not all bfloat16 numbers, and their products even fewer."""
    scores = make_scores(shape.heads, device, *options)
    scores = replace(scores, slopes=(1.1 * scores.slopes).bfloat16().float())
    exact = replace(scores, slopes=options[3] * scores.slopes, slope_factor=None)
    parts = [Part(sequence(shape, end, end), end - n, end) for end, n in ((33, 33), (613, 7))]
    rows = run(device, shape, parts, scores=scores)
    for part, got in zip(parts, rows, strict=True):
        assert_close(shape, part, got, scores)
    (plain,) = run(device, shape, parts[1:], scores=exact)
    assert np.abs(plain - rows[1]).max() > 1e-2
    (alone,) = run(device, shape, [Part(parts[1].sequence, 610, 611)], scores=scores)
    np.testing.assert_array_equal(alone[0], rows[1][4])


def test_a_sink_is_joined_once_whoever_joins_the_splits(device: Any) -> None:
    shape = Shape(2, 1, 16, "float32")
    parts = [Part(sequence(shape, 1300, 1), 1299, 1300), Part(sequence(shape, 70, 2), 60, 70)]
    scores = make_scores(2, device)
    kernel = shape.kernel(device)
    cache, step = make(shape, parts, device)
    cut = launch(kernel, shape, parts, cache, step, kernel.plan_work(step), scores)
    whole_work = replace(kernel.planner, capacity=0).plan(step)
    assert whole_work[0, 0] < kernel.plan_work(step)[0, 0]
    whole = launch(kernel, shape, parts, cache, step, whole_work, scores)
    for part, a, b in zip(parts, cut, whole, strict=True):
        assert_close(shape, part, a, scores)
        np.testing.assert_array_equal(a, b)
