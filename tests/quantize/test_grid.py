"""Grids of integers: what scales and codes a group gets."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.errors import WeightError
from penstock.models.spec import DType
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.grid import IntegerGrid, IntegerMatrix

VALUES = arrays.arrays(
    np.float32, (3, 8), elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False)
)
GRIDS = st.builds(
    IntegerGrid,
    bits=st.sampled_from([2, 3, 4, 8]),
    group_size=st.sampled_from([2, 4, None]),
    symmetric=st.booleans(),
    scale_dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
)


def rounded(values: np.ndarray[Any, Any], grid: IntegerGrid) -> IntegerMatrix:
    return Integers(grid, STORAGES["gptq"]).round(values, "m").matrix


@given(VALUES, GRIDS)
def test_errors_are_at_most_half_a_step_and_what_a_scale_loses_by_its_type(
    values: np.ndarray[Any, Any], grid: IntegerGrid
) -> None:
    made = rounded(values, grid)
    size = values.shape[1] // made.scales.shape[1]
    assert made.codes.max() <= grid.highest
    step = np.repeat(made.scales, size, axis=1).astype(np.float64)
    lost = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-10}[grid.scale_dtype]
    # The span of the codes is that much smaller than the span of the values, and subnormal scales
    # are further from what they should be. The zero of an asymmetric grid is rounded, too.
    slack = step * grid.highest * lost + grid.highest * 2.0**-24
    bound = 0.5 * step + slack + 0.5 * step * (not grid.symmetric)
    errors = np.abs(made.dequantize().astype(np.float64) - values)
    assert (errors <= bound * (1 + 1e-6)).all()


@given(VALUES, GRIDS)
def test_zero_is_exact(values: np.ndarray[Any, Any], grid: IntegerGrid) -> None:
    values[:, ::3] = 0
    made = rounded(values, grid)
    assert not made.dequantize()[:, ::3].any()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_scales_and_codes_are_those_of_compressed_tensors(bits: int, symmetric: bool) -> None:
    """Its rules, in its own terms: signed codes, and a range of the codes' width."""
    rng = np.random.default_rng(bits)
    values = rng.normal(size=(5, 64)).astype(np.float32)
    made = rounded(values, IntegerGrid(bits, 32, symmetric, "float32"))
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    groups = values.reshape(5, 2, 32).astype(np.float64)
    least, most = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    if symmetric:
        scales = np.maximum(-least, most) / ((high - low) / 2)
        points = np.zeros_like(scales)
    else:
        scales = (most - least) / (high - low)
        points = np.clip(np.round(low - least / scales), low, high)
    codes = np.clip(np.round(groups / scales[..., None] + points[..., None]), low, high)
    assert made.scales == pytest.approx(scales, rel=1e-6)
    assert np.array_equal(made.zeros + low, points)
    different = made.codes.reshape(5, 2, 32).astype(int) + low != codes
    assert different.mean() < 0.01  # where a value is half way between two codes


def test_a_matrix_of_zeros_has_a_scale() -> None:
    made = rounded(np.zeros((2, 4), np.float32), IntegerGrid(4, 2, True, "float16"))
    assert (made.scales == 1).all()
    assert not made.dequantize().any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_smallest_scale_is_above_zero(dtype: DType) -> None:
    values = np.full((1, 4), 1e-44, np.float32)
    made = rounded(values, IntegerGrid(4, None, True, dtype))
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    assert made.scales.astype(kind).astype(np.float32)[0, 0] == made.scales[0, 0] > 0


def test_values_too_large_for_the_type_of_scales_are_refused() -> None:
    values = np.full((1, 4), 1e6, np.float32)
    with pytest.raises(WeightError, match=r"layer\.q has values so large .* no float16"):
        Integers(IntegerGrid(4, None, True, "float16"), STORAGES["gptq"]).round(values, "layer.q")
