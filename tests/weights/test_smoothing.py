"""Factors of columns even out norms, whatever the rows' scales, and are a few round numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.interface.plan_weights import Balance
from penstock.interface.sources import Stored
from penstock.quant.grid import quantize_to_grid
from penstock.quant.hadamard import transform_rows
from penstock.quant.scheme import Bits, GridScheme
from penstock.weights import smoothing
from penstock.weights.smoothing import column_squares, smoothed, smoothing_factors

F32 = NDArray[np.float32]
SOURCES = (Stored("w", (40, 64)),)


def uneven(seed: int, n: int = 40, k: int = 64, spread: float = 1.0) -> F32:
    """A matrix whose columns differ in norm."""
    generator = np.random.default_rng(seed)
    matrix = generator.standard_normal((n, k)) * np.exp(spread * generator.standard_normal(k))
    return matrix.astype(np.float32)


def column_norms(*matrices: F32) -> NDArray[np.float64]:
    rows = [matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in matrices]
    norms: NDArray[np.float64] = np.linalg.norm(np.concatenate(rows), axis=0)
    return norms


def test_columns_get_one_norm() -> None:
    matrices = uneven(1), uneven(2, n=7, spread=0.3)
    by = smoothing_factors(matrices)
    before = column_norms(*matrices)
    rows = [matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in matrices]
    after = np.linalg.norm(np.concatenate(rows) * by, axis=0)
    assert before.max() / before.min() > 4
    assert after.max() / after.min() < 2 ** (1 / 8) * 1.001


def test_scales_of_rows_change_nothing() -> None:
    matrix = uneven(3)
    scales = np.exp(np.random.default_rng(4).standard_normal((40, 1))).astype(np.float32)
    np.testing.assert_array_equal(smoothing_factors([matrix * scales]), smoothing_factors([matrix]))


def test_pieces_and_types_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = uneven(5).astype(ml_dtypes.bfloat16)
    whole = smoothing_factors([matrix])
    np.testing.assert_array_equal(smoothing_factors([matrix.astype(np.float32)]), whole)
    monkeypatch.setattr(smoothing, "_CHUNK", 64 * 9)
    np.testing.assert_array_equal(smoothing_factors([matrix]), whole)


def test_factors_are_bounded_powers() -> None:
    matrix = uneven(6)
    matrix[:, 3], matrix[:, 4] = 0, matrix[:, 4] * 1e-6
    matrix[5] = 0
    by = smoothing_factors([matrix])
    assert by[3] == by[4] == smoothing.MAX_FACTOR
    assert by.min() >= 1 / smoothing.MAX_FACTOR
    steps = 8 * np.log2(by.astype(np.float64))
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_values_without_a_square_leave_all_as_it_is(value: float) -> None:
    matrix = uneven(7)
    matrix[2, 5] = value
    assert (smoothing_factors([matrix]) == 1).all()


def test_zeros_alone() -> None:
    assert np.isfinite(smoothing_factors([np.zeros((3, 8), np.float32)])).all()


def test_products_stay() -> None:
    matrix, maker = uneven(8), uneven(9, n=64, k=16)
    by = smoothing_factors([matrix])
    product = smoothed(matrix, Balance(SOURCES, "matrix"), by).astype(np.float64) @ smoothed(
        maker, Balance(SOURCES, "input"), by
    ).astype(np.float64)
    np.testing.assert_allclose(product, matrix.astype(np.float64) @ maker, rtol=1e-5, atol=1e-5)
    vector = maker[:, 0]
    np.testing.assert_array_equal(smoothed(vector, Balance(SOURCES, "input"), by), vector / by)


def test_both_sides_have_equal_parts_of_a_column() -> None:
    matrix, x = uneven(11), uneven(12, n=300, spread=0.7)
    by = smoothing_factors([matrix], column_squares(x))
    parts = column_norms(matrix) * by / (column_norms(x) / by)
    assert parts.max() / parts.min() < 2 ** (2 / 8) * 1.001
    np.testing.assert_array_equal(smoothing_factors([matrix * 7], column_squares(x * 3)), by)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_inputs_that_are_not_finite_leave_all_as_it_is(value: float) -> None:
    squares = column_squares(uneven(13))
    squares[3] = value
    assert (smoothing_factors([uneven(14)], squares) == 1).all()


def test_inputs_of_zeros_alone() -> None:
    by = smoothing_factors([uneven(15)], np.zeros(64))
    assert np.isfinite(by).all()
    assert (by > 0).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_loses_less_where_the_input_is_large_and_the_matrix_small(bits: Bits) -> None:
    generator = np.random.default_rng(10)
    size = np.exp(generator.standard_normal(256)).astype(np.float32)
    matrix = generator.standard_normal((64, 256)).astype(np.float32) / size
    x = generator.standard_normal((50, 256)).astype(np.float32) * size

    def error(matrix: F32, by: F32) -> float:
        rounded = quantize_to_grid(matrix * by, GridScheme(bits), transformed=True)
        codes = rounded.points().astype(np.float32) * rounded.scales[:, None]
        out = transform_rows(x / by) @ codes.T
        return float(np.square(out - x @ matrix.T).mean())

    ones = np.ones(256, np.float32)
    assert error(matrix, smoothing_factors([matrix])) < 0.3 * error(matrix, ones)
    # Of columns that are not as small as the input is large, only the input tells.
    other = matrix / np.exp(generator.standard_normal(256)).astype(np.float32)
    measured = column_squares(x)
    assert error(other, smoothing_factors([other], measured)) < 0.8 * error(
        other, smoothing_factors([other])
    )
