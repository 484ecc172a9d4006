"""Rounding to nearest: bounds of its error, and what it keeps exactly."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.errors import WeightError
from penstock.quant import GroupScheme, GroupTensor, quantize

SCHEMES = [
    GroupScheme(bits, size, zero_points)
    for bits in (8, 4)
    for size in (32, 64, 128, None)
    for zero_points in (False, True)
]

schemes = st.sampled_from(SCHEMES)
matrices = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 200)),
    # Magnitudes apart by less than float32's range: scales stay normal numbers.
    elements=st.floats(-1e6, 1e6, width=32).filter(lambda v: v == 0 or abs(v) > 1e-20),
)


def spread(tensor: GroupTensor) -> np.ndarray:
    """The scale of every element, in float64."""
    k = tensor.codes.shape[1]
    size = tensor.scheme.group_size or k
    return np.repeat(tensor.scales, size, axis=1)[:, :k].astype(np.float64)


@settings(max_examples=75, deadline=None)
@given(matrices, schemes)
def test_every_value_goes_to_its_nearest_code(matrix: np.ndarray, scheme: GroupScheme) -> None:
    tensor = quantize(matrix, scheme)
    assert tensor.codes.shape == matrix.shape
    assert tensor.scales.shape == (len(matrix), scheme.groups(matrix.shape[1]))
    assert tensor.codes.min() >= scheme.lowest
    assert tensor.codes.max() <= scheme.highest
    scales = spread(tensor)
    error = np.abs(tensor.points() * scales - matrix.astype(np.float64))
    # The quotient is rounded in float32 before it is rounded to a code.
    half = np.abs(scales) * (0.5 + 2.0**-16)
    clamped = tensor.codes == scheme.highest
    lopsided = scheme.bits == 4 and not scheme.zero_points
    bound = np.where(clamped, 2 * half, half) if lopsided else half
    assert (error <= bound).all()


@settings(max_examples=100, deadline=None)
@given(matrices, schemes)
def test_what_is_on_the_grid_stays(matrix: np.ndarray, scheme: GroupScheme) -> None:
    """Quantizing what was dequantized gives the same codes, up to the sign of a scale."""
    once = quantize(matrix, scheme)
    again = quantize(once.dequantize(), scheme)
    np.testing.assert_allclose(again.dequantize(), once.dequantize(), rtol=1e-6, atol=0)


@settings(max_examples=50, deadline=None)
@given(matrices, schemes)
def test_rows_and_groups_are_independent(matrix: np.ndarray, scheme: GroupScheme) -> None:
    whole = quantize(matrix, scheme)
    for row in range(len(matrix)):
        alone = quantize(matrix[row : row + 1], scheme)
        assert np.array_equal(alone.codes[0], whole.codes[row])
    size = scheme.group_size or matrix.shape[1]
    last = (matrix.shape[1] - 1) // size * size  # the shorter group is quantized like any other
    alone = quantize(np.ascontiguousarray(matrix[:, last:]), scheme)
    assert np.array_equal(alone.codes, whole.codes[:, last:])
    assert np.array_equal(alone.scales[:, 0], whole.scales[:, -1])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_largest_value_is_exact_and_zeros_stay(scheme: GroupScheme) -> None:
    matrix = np.zeros((3, 70), np.float32)
    matrix[0, 3], matrix[1, 65] = 8.0, -16.0
    tensor = quantize(matrix, scheme)
    np.testing.assert_allclose(tensor.dequantize(), matrix, rtol=1e-6)
    assert not tensor.codes[2].any()
    assert not tensor.scales[2].any()


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s.zero_points], ids=str)
def test_zero_points_spend_codes_on_the_side_that_has_values(scheme: GroupScheme) -> None:
    """Values of one sign get all codes; zero itself is always exact."""
    matrix = np.linspace(0, 3, 256, dtype=np.float32)[None]
    matrix = np.concatenate([matrix, -matrix, matrix - 1])
    tensor = quantize(matrix, scheme)
    assert tensor.zeros is not None
    spans = np.ptp(tensor.codes[:2].astype(int).reshape(2, -1), axis=1)
    if scheme.group_size is None:
        assert (spans == scheme.highest - scheme.lowest).all()
        assert tensor.zeros[:2, 0].tolist() == [scheme.lowest, scheme.highest]
    symmetric = quantize(matrix, GroupScheme(scheme.bits, scheme.group_size))
    error, other = (np.abs(t.dequantize() - matrix)[:2].mean() for t in (tensor, symmetric))
    assert error < other * 0.75
    assert (tensor.dequantize()[matrix == 0] == 0).all()


def test_four_bits_use_sixteen_codes() -> None:
    matrix = np.linspace(-8, 7, 32, dtype=np.float32)[None]
    assert set(quantize(matrix, GroupScheme(4, 32)).codes[0]) == set(range(-8, 8))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_other_types_are_read_as_they_are(dtype: type) -> None:
    matrix = np.random.default_rng(0).standard_normal((40, 90)).astype(dtype)
    for scheme in SCHEMES:
        narrow, wide = quantize(matrix, scheme), quantize(matrix.astype(np.float32), scheme)
        assert np.array_equal(narrow.codes, wide.codes)
        assert np.array_equal(narrow.scales, wide.scales)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_values_that_are_not_finite_are_refused(scheme: GroupScheme, value: float) -> None:
    matrix = np.ones((2, 50), np.float32)
    matrix[1, 49] = value
    with pytest.raises(WeightError, match=r"layers\.3\.q has values that are not finite"):
        quantize(matrix, scheme, "layers.3.q")


@pytest.mark.parametrize(("bits", "size"), [(3, 32), (8, 0), (4, 48)])
def test_schemes_that_do_not_exist(bits: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"not (3|0|48)"):
        GroupScheme(bits, size)  # type: ignore[arg-type]


def test_bytes() -> None:
    assert GroupScheme(8, 128).nbytes(10, 256) == 10 * (256 + 2 * 4)
    assert GroupScheme(4, 32).nbytes(10, 100) == 10 * (50 + 4 * 4)
    assert GroupScheme(4, None).nbytes(1, 7) == 4 + 4
    assert GroupScheme(4, 32, zero_points=True).nbytes(10, 100) == 10 * (50 + 4 * 5)
