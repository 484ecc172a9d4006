"""Products with quantized weights, on every native variant that this machine runs.

The expected value has exact integer dots, whose scaled sum alone is rounded; so the tolerance is
that of one float32 addition a group, and rows must equal themselves bit by bit in any batch.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native_products import (
    DTYPES,
    QuantizedProduct,
    assert_bad_values_stay_in_their_row,
    assert_narrow_output_is_rounded,
    assert_rows_keep_to_themselves,
    assert_within,
)

from penstock.backends.cpu import native
from penstock.backends.reference.products import int_product, quantize_rows
from penstock.errors import ConfigError
from penstock.quant import GroupScheme, quantize

pytestmark = pytest.mark.thinned(5)

SCHEMES = [
    GroupScheme(bits, size, zero_points)
    for zero_points in (False, True)
    for bits in (8, 4)
    for size in (32, 64, 128, None)
]


def sums(product: QuantizedProduct, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exact sums with bias ``[m, total]`` in float64, and the sums of their terms' sizes."""
    codes = np.concatenate([p.points() for p in product.parts])
    scales = np.concatenate([p.scales for p in product.parts])
    k = codes.shape[1]
    size = product.parts[0].scheme.group_size or k
    result = np.zeros((len(x), len(codes)))
    magnitude = np.zeros_like(result)
    for g, first in enumerate(range(0, k, size)):
        columns = slice(first, first + size)
        x_codes, x_scales = quantize_rows(x[:, columns].astype(np.float32))
        dots = x_codes.astype(np.int64) @ codes[:, columns].T.astype(np.int64)
        term = (x_scales * scales[:, g]).astype(np.float64) * dots
        result += term
        magnitude += np.abs(term)
    if product.bias is not None:
        result += product.bias
        magnitude += np.abs(product.bias)
    return result, magnitude


def check(module: Any, product: QuantizedProduct, x: np.ndarray, threads: int) -> None:
    expected, magnitude = sums(product, x)
    groups = product.parts[0].scales.shape[1]
    error = magnitude * 2.0**-24 * (groups + 4) + 1e-30
    assert_within(product.run(module, x, threads), product, expected, error)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("k", [1, 5, 31, 64, 100, 257, 688])
def test_odd_sizes(module: Any, k: int, scheme: GroupScheme) -> None:
    rng = np.random.default_rng(k)
    for n in (1, 15, 33):
        for m in (1, 3, 8, 17, 40):
            product = QuantizedProduct.random(rng, (n,), k, scheme, bias=n % 3 == 0)
            x = rng.standard_normal((m, k)).astype(DTYPES["float32" if m % 2 else "bfloat16"])
            check(module, product, x, 1 + m % 3)


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_at_their_limits(module: Any, bits: Any) -> None:
    """Products of the largest bytes, all of one sign: nothing saturates."""
    scheme = GroupScheme(bits, 128)
    signs = np.where(np.arange(48) % 2, 1, -1)[:, None]
    matrix = (np.ones((48, 512)) * signs).astype(np.float32)
    product = QuantizedProduct((quantize(matrix, scheme),))
    for m in (1, 5, 33):
        x = np.ones((m, 512), np.float32)
        x[::2] *= -1
        np.testing.assert_allclose(product.run(module, x), x @ matrix.T, rtol=1e-6)
    # All of one sign, zero is the least or the greatest code: points of 255 or 15.
    spanned = QuantizedProduct((quantize(matrix, GroupScheme(bits, None, True)),))
    assert np.abs(spanned.parts[0].points()).min() == 2**bits - 1
    for m in (1, 5, 33):
        x = np.ones((m, 512), np.float32)
        x[::2] *= -1
        np.testing.assert_allclose(spanned.run(module, x), x @ matrix.T, rtol=1e-6)
    if bits == 4:  # 7 is reached by values of the other sign
        matrix[:, ::2] *= np.float32(-7 / 8)
        product = QuantizedProduct((quantize(matrix, scheme),))
        check(module, product, np.ones((20, 512), np.float32), 2)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_joined_parts_share_panels(module: Any, scheme: GroupScheme) -> None:
    rng = np.random.default_rng(6)
    product = QuantizedProduct.random(rng, (21, 3, 8, 16, 1), 66, scheme, bias=True)
    for threads, m in ((1, 2), (2, 9), (3, 30), (7, 4)):
        check(module, product, rng.standard_normal((m, 66)).astype(np.float32), threads)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", "gelu", "relu", "relu2", "identity"])
@pytest.mark.parametrize("scheme", [SCHEMES[i] for i in (2, 4, 8, 13)], ids=str)
def test_gated(module: Any, scheme: GroupScheme, gate: str) -> None:
    rng = np.random.default_rng(7)
    for n, m, bias in ((1, 1, False), (16, 5, True), (37, 19, False), (80, 35, True)):
        product = QuantizedProduct.random(rng, (n, n), 80, scheme, gate, bias)
        check(module, product, rng.standard_normal((m, 80)).astype(np.float32), 2)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("gate", ["none", "silu"])
def test_a_row_does_not_depend_on_its_batch(module: Any, gate: str, scheme: GroupScheme) -> None:
    """Bitwise, though few rows and many take different instructions; 4200 of k make row blocks."""
    rng = np.random.default_rng(8)
    for n, k, m in ((40, 96, 70), (36, 4200, 300)):
        product = QuantizedProduct.random(rng, (n, n), k, scheme, gate, bias=True)
        x = rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16)
        assert_rows_keep_to_themselves(module, product, x, (1, 2, 3, 5, 8, 9, 16, 17, 33))


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s.group_size is None], ids=str)
def test_one_group_is_the_reference_bit_by_bit(module: Any, scheme: GroupScheme) -> None:
    """There is no sum of floats then, whose order or fusing could be seen."""
    rng = np.random.default_rng(15)
    for k in (7, 130, 1500):
        product = QuantizedProduct.random(rng, (33,), k, scheme)
        x = rng.standard_normal((40, k)).astype(np.float32)
        expected = int_product(x, product.parts[0])
        for rows in (1, 3, 9, 40):
            assert np.array_equal(product.run(module, x[:rows], 2), expected[:rows])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_instruction_sets_agree(scheme: GroupScheme) -> None:
    """Those with fused multiply-add give the same bits: there is nothing else to differ in."""
    rng = np.random.default_rng(10)
    product = QuantizedProduct.random(rng, (50,), 300, scheme)
    results = []
    for isa in native.runnable():
        if isa != "baseline":
            try:
                module = native.load(isa)
            except ConfigError:
                continue
            for m in (40, 3):
                x = np.random.default_rng(11).standard_normal((m, 300)).astype(np.float32)
                results.append(product.run(module, x)[:3])
    for result in results[2::2]:
        assert np.array_equal(result, results[0])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_nan_and_infinity_stay_in_their_row(module: Any, scheme: GroupScheme) -> None:
    rng = np.random.default_rng(9)
    product = QuantizedProduct.random(rng, (35,), 150, scheme)
    for m in (2, 17, 50):
        x = rng.standard_normal((m, 150)).astype(np.float32)
        assert_bad_values_stay_in_their_row(module, product, x, 140)


def test_rows_of_zeros_and_of_subnormal_values(module: Any) -> None:
    rng = np.random.default_rng(12)
    for scheme in SCHEMES:
        product = QuantizedProduct.random(rng, (20,), 90, scheme)
        x = np.zeros((12, 90), np.float32)
        x[1::2] = 1e-44
        got = product.run(module, x)
        assert not got[::2].any()
        assert np.isfinite(got).all()
        assert np.abs(got).max() < 1e-40


def test_output_in_bfloat16_is_that_in_float32_rounded(module: Any) -> None:
    rng = np.random.default_rng(13)
    product = QuantizedProduct.random(rng, (45,), 200, SCHEMES[5], bias=True)
    for m in (1, 20):
        x = rng.standard_normal((m, 200)).astype(np.float32)
        assert_narrow_output_is_rounded(module, product, x)
