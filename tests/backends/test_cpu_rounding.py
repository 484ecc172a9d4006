"""Weights rounded on all threads are those of quant/tensor.py, bit by bit, on every variant."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.native_sampler import bare_executor

from penstock.backends.cpu import native
from penstock.backends.cpu.forms import round_weights
from penstock.errors import WeightError
from penstock.quant import GroupScheme, quantize

pytestmark = pytest.mark.thinned(5)

SCHEMES = [
    GroupScheme(bits, size, zero_points)
    for bits in (8, 4)
    for size in (32, 64, 128, None)
    for zero_points in (False, True)
]
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def same(native_executor: Any, matrix: np.ndarray, scheme: GroupScheme) -> None:
    try:
        expected = quantize(matrix, scheme)
    except WeightError:  # from one end of float32 to the other: the span is infinite
        with pytest.raises(WeightError):
            round_weights(native_executor, matrix, scheme, "w")
        return
    got = round_weights(native_executor, matrix, scheme, "w")
    np.testing.assert_array_equal(got.codes, expected.codes)
    assert got.scales.tobytes() == expected.scales.tobytes()
    np.testing.assert_array_equal(got.zeros, expected.zeros)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_random_weights(module: Any, scheme: GroupScheme, dtype: Any, threads: int) -> None:
    rng = np.random.default_rng(scheme.bits)
    pool = bare_executor(module, 1, threads)
    for n, k in ((1, 1), (3, 31), (7, 64), (17, 200), (64, 513)):
        matrix = rng.standard_normal((n, k)) * 0.1
        same(pool, matrix.astype(dtype), scheme)
        same(pool, (matrix + np.linspace(-0.5, 0.5, n)[:, None]).astype(dtype), scheme)
    pool.close()


matrices = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 150)),
    elements=st.one_of(
        st.floats(allow_nan=False, allow_infinity=False, width=32),
        # Where quotients are ties, scales underflow, and zeros have signs.
        st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-38, 0.5, 1.0, 127.0, -8.0, 63.5, -3.4e38]),
    ),
)


@pytest.mark.parametrize("isa", native.runnable())
@settings(max_examples=150, deadline=None)
@given(matrix=matrices, scheme=st.sampled_from(SCHEMES))
def test_any_finite_values(isa: str, matrix: np.ndarray, scheme: GroupScheme) -> None:
    pool = bare_executor(native.load(isa), 1)
    same(pool, matrix, scheme)
    pool.close()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(module: Any, scheme: GroupScheme, value: float) -> None:
    pool = bare_executor(module, 1)
    for at in (0, 15, 99, 149):
        matrix = np.ones((3, 150), np.float32)
        matrix[1, at] = value
        with pytest.raises(WeightError, match=r"layers\.7\.q has values that are not finite"):
            round_weights(pool, matrix, scheme, "layers.7.q")
    pool.close()


def test_rows_at_odd_addresses(module: Any) -> None:
    """As views into a file may lie."""
    scheme = GroupScheme(4, 32)
    matrix = np.random.default_rng(1).standard_normal((5, 70)).astype(np.float32)
    raw = np.empty(matrix.nbytes + 1, np.uint8)
    raw[1:] = matrix.reshape(-1).view(np.uint8)
    codes = np.empty((5, 70), np.int8)
    scales = np.empty((5, 3), np.float32)
    pool = bare_executor(module, 1)
    pool.round_rows("float32", raw[1:], 4, 32, codes, scales, None)
    expected = quantize(matrix, scheme)
    np.testing.assert_array_equal(codes, expected.codes)
    assert scales.tobytes() == expected.scales.tobytes()
    pool.close()


def test_shapes_must_agree(module: Any) -> None:
    pool = bare_executor(module, 1)
    rows = np.zeros(4 * 64 * 4, np.uint8)
    codes, scales = np.empty((4, 64), np.int8), np.empty((4, 2), np.float32)
    zeros = np.empty((4, 2), np.int8)
    pool.round_rows("float32", rows, 8, 32, codes, scales, None)
    pool.round_rows("float32", rows, 8, 32, codes, scales, zeros)
    for elem, bits, group, given_rows, given_codes, given_scales, given_zeros in (
        ("float32", 8, 32, rows[:-4], codes, scales, None),
        ("float32", 8, 32, rows, codes[:3], scales, None),
        ("float32", 8, 32, rows, codes, scales[:, :1].copy(), None),
        ("float32", 8, 32, rows, codes, scales, zeros[:3]),
        ("float32", 8, 64, rows, codes, scales, None),
        ("float32", 5, 32, rows, codes, scales, None),
        ("bfloat16", 8, 32, rows, codes, scales, None),
        ("int32", 8, 32, rows, codes, scales, None),
    ):
        with pytest.raises(ValueError, match="rounded weights differ in shape"):
            pool.round_rows(elem, given_rows, bits, group, given_codes, given_scales, given_zeros)
    pool.close()
