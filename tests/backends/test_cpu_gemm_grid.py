"""Products on the 8-bit grid, on every native variant that this machine runs.

Dots are exact and what follows them is three roundings in a fixed order, so the native result
equals the reference's bit by bit, for any number of rows and threads.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.native_arrays import as_bytes
from support.native_products import (
    DTYPES,
    QuantizedProduct,
    assert_bad_values_stay_in_their_row,
    assert_narrow_output_is_rounded,
    assert_rows_keep_to_themselves,
)

from penstock.backends.cpu import native
from penstock.backends.reference.numerics import activate
from penstock.backends.reference.products import grid_product
from penstock.quant import GridScheme, GridTensor, quantize_to_grid

pytestmark = pytest.mark.thinned(5)

SCHEMES = [GridScheme(8), GridScheme(4)]


def native_quantize(
    module: Any, matrix: np.ndarray, scheme: GridScheme, transformed: bool
) -> tuple[GridTensor, bool]:
    n, k = matrix.shape
    groups = -(-k // 16) if scheme.bits == 4 else 0
    codes, windows = np.empty((n, k), np.int8), np.empty((n, groups), np.uint8)
    scales = np.empty(n, np.float32)
    finite = module.quantize_grid(
        rows=as_bytes(matrix),
        elem=matrix.dtype.name,
        bits=scheme.bits,
        transformed=transformed,
        codes=codes,
        windows=windows,
        scales=scales,
    )
    return GridTensor(scheme, codes, windows, scales, transformed), finite


def expected(product: QuantizedProduct, x: np.ndarray) -> np.ndarray:
    """The product before any gate."""
    wide = x.astype(np.float32)
    sums = np.concatenate([grid_product(wide, part) for part in product.parts], axis=1)
    return sums if product.bias is None else sums + product.bias


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("k", [1, 5, 31, 64, 100, 129, 257, 512, 688, 1100, 1536])
def test_equals_the_reference(module: Any, k: int, scheme: GridScheme) -> None:
    rng = np.random.default_rng(k)
    for n in (1, 15, 33, 64):
        for m in (1, 2, 3, 4, 8, 17, 33, 40):
            product = QuantizedProduct.random(rng, (n,), k, scheme, bias=n % 3 == 0)
            x = rng.standard_normal((m, k)).astype(DTYPES["float32" if m % 2 else "bfloat16"])
            assert np.array_equal(product.run(module, x, 1 + m % 3), expected(product, x)), (n, m)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_many_rows_and_a_deep_matrix(module: Any, scheme: GridScheme) -> None:
    """More slices of the depth than rows stay in cache for, several blocks of rows and chunks."""
    rng = np.random.default_rng(3)
    for m, n, k in ((530, 21, 1200), (520, 80, 5000), (1030, 40, 300), (100, 33, 9000)):
        product = QuantizedProduct.random(rng, (n,), k, scheme)
        x = rng.standard_normal((m, k)).astype(np.float32)
        assert np.array_equal(product.run(module, x, 2), expected(product, x)), (m, n, k)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_points_at_their_limits(module: Any, scheme: GridScheme) -> None:
    """Products of the largest bytes, all of one sign: nothing saturates."""
    signs = np.where(np.arange(48) % 2, 1, -1)[:, None]
    matrix = (np.ones((48, 512)) * signs).astype(np.float32)
    matrix[:, ::2] *= -1
    product = QuantizedProduct((quantize_to_grid(matrix, scheme, transformed=True),))
    for m in (1, 5, 33):
        x = np.ones((m, 512), np.float32)
        x[:, ::2] = -1
        assert np.array_equal(product.run(module, x), expected(product, x))
    if scheme.bits == 4:
        every = GridTensor(
            scheme,
            np.tile(np.array([0, 15], np.int8), (256, 32)),
            np.repeat(_fitting_windows(), 4).reshape(-1, 4)[:256],
            np.ones(256, np.float32),
            transformed=True,
        )
        x = np.full((7, 64), 3, np.float32)
        assert np.array_equal(
            QuantizedProduct((every,)).run(module, x), expected(QuantizedProduct((every,)), x)
        )


def _fitting_windows() -> np.ndarray:
    """All windows whose sixteen points lie in -128..127, repeated to 256."""
    windows = np.arange(256)
    step, origin = windows % 16 + 1, windows // 16
    fits = (step * origin <= 128) & (step * (15 - origin) <= 127)
    return np.resize(windows[fits], 256).astype(np.uint8)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_joined_parts_share_panels(module: Any, scheme: GridScheme) -> None:
    rng = np.random.default_rng(6)
    product = QuantizedProduct.random(rng, (21, 3, 8, 16, 1), 66, scheme, bias=True)
    for threads, m in ((1, 2), (2, 9), (3, 30), (7, 4)):
        x = rng.standard_normal((m, 66)).astype(np.float32)
        assert np.array_equal(product.run(module, x, threads), expected(product, x))


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", "gelu", "relu", "relu2", "identity"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_gated(module: Any, scheme: GridScheme, gate: str) -> None:
    rng = np.random.default_rng(7)
    for n, m, bias in (
        (1, 1, False),
        (16, 5, True),
        (37, 19, False),
        (80, 35, True),
        (20, 2, True),
    ):
        product = QuantizedProduct.random(rng, (n, n), 80, scheme, gate, bias)
        x = rng.standard_normal((m, 80)).astype(np.float32)
        both = expected(product, x)
        gated = activate(both[:, :n], gate) * both[:, n:]
        np.testing.assert_allclose(product.run(module, x, 2), gated, rtol=2e-5, atol=1e-5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("gate", ["none", "silu"])
def test_a_row_does_not_depend_on_its_batch(module: Any, gate: str, scheme: GridScheme) -> None:
    """Bitwise, though few rows and many take different instructions and blockings."""
    rng = np.random.default_rng(8)
    for n, k, m in ((40, 96, 70), (36, 4200, 300)):
        product = QuantizedProduct.random(rng, (n, n), k, scheme, gate, bias=True)
        x = rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16)
        counts = (1, 2, 3, 5, 8, 9, 16, 17, 33, 65)
        assert_rows_keep_to_themselves(module, product, x, counts)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_nan_and_infinity_stay_in_their_row(module: Any, scheme: GridScheme) -> None:
    rng = np.random.default_rng(9)
    product = QuantizedProduct.random(rng, (35,), 150, scheme)
    for m in (2, 17, 50):
        x = rng.standard_normal((m, 150)).astype(np.float32)
        assert_bad_values_stay_in_their_row(module, product, x, 140)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_rows_of_nothing(module: Any, scheme: GridScheme) -> None:
    rng = np.random.default_rng(12)
    product = QuantizedProduct.random(rng, (20,), 90, scheme)
    x = np.zeros((12, 90), np.float32)
    x[1::3], x[2::3] = 1e-44, 1e-31
    assert not product.run(module, x).any()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_output_in_bfloat16_is_that_in_float32_rounded(module: Any, scheme: GridScheme) -> None:
    rng = np.random.default_rng(13)
    product = QuantizedProduct.random(rng, (45,), 200, scheme, bias=True)
    for m in (1, 20):
        x = rng.standard_normal((m, 200)).astype(np.float32)
        assert_narrow_output_is_rounded(module, product, x)


matrices = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 140)),
    elements=st.floats(-(2.0**60), 2.0**60, width=32),
)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@settings(max_examples=60, deadline=None)
@given(matrix=matrices, transformed=st.booleans())
def test_the_native_quantizer_is_the_reference(
    scheme: GridScheme, matrix: np.ndarray, transformed: bool
) -> None:
    module = native.load()
    expected = quantize_to_grid(matrix, scheme, transformed=transformed)
    got, finite = native_quantize(module, matrix, scheme, transformed)
    assert finite
    assert np.array_equal(got.scales, expected.scales)
    assert np.array_equal(got.windows, expected.windows)
    assert np.array_equal(got.codes, expected.codes)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("k", [333, 334, 340, 344, 352, 416, 448, 640, 1280, 3072])
def test_every_variant_quantizes_every_type(
    module: Any, k: int, scheme: GridScheme, dtype: Any
) -> None:
    """Blocks of every size that the transform has are turned."""
    rng = np.random.default_rng(14)
    matrix = (rng.standard_t(3, (20, k)) * 0.02).astype(dtype)
    for transformed in (False, True):
        expected = quantize_to_grid(matrix, scheme, transformed=transformed)
        got, finite = native_quantize(module, matrix, scheme, transformed)
        assert finite
        assert np.array_equal(got.scales, expected.scales)
        assert np.array_equal(got.windows, expected.windows)
        assert np.array_equal(got.codes, expected.codes)
    matrix[1, k - 1] = np.nan
    assert not native_quantize(module, matrix, scheme, False)[1]
    assert not native_quantize(module, matrix, scheme, True)[1]
