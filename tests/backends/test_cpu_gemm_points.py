"""Products of quantized weights with float activations, on every native variant that runs here.

The expected value is the sum in float64 of x times points, scaled; a float32 sum of k terms is
within k roundings of it. Rows must equal themselves bit by bit in any batch and on any number of
threads.
"""

from __future__ import annotations

from dataclasses import replace
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

from penstock.quant import GridScheme, GroupScheme, QuantScheme

pytestmark = pytest.mark.thinned(5)

SCHEMES: list[QuantScheme] = [
    GridScheme(8),
    GridScheme(4),
    *(
        GroupScheme(bits, size, zero_points)
        for zero_points in (False, True)
        for bits in (8, 4)
        for size in (32, 64, 128, None)
    ),
]


def make_product(
    rng: np.random.Generator,
    sizes: tuple[int, ...],
    k: int,
    scheme: QuantScheme,
    gate: str = "none",
    bias: bool = False,
) -> QuantizedProduct:
    return QuantizedProduct.random(rng, sizes, k, scheme, gate, bias, weight_only=True)


def sums(product: QuantizedProduct, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums with bias ``[m, total]`` in float64, and the sums of their terms' sizes."""
    w = np.concatenate([part.dequantize() for part in product.parts]).astype(np.float64)
    wide = x.astype(np.float64)
    result, magnitude = wide @ w.T, np.abs(wide) @ np.abs(w).T
    if product.bias is not None:
        result += product.bias
        magnitude += np.abs(product.bias)
    return result, magnitude


def check(module: Any, product: QuantizedProduct, x: np.ndarray, threads: int) -> None:
    expected, magnitude = sums(product, x)
    # A chain of k additions is seldom wrong by more than some sqrt(k) roundings.
    error = magnitude * 2.0**-24 * (8 + 4 * np.sqrt(x.shape[1])) + 1e-30
    assert_within(product.run(module, x, threads), product, expected, error)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("k", [1, 5, 31, 64, 100, 257, 688])
def test_odd_sizes(module: Any, k: int, scheme: QuantScheme) -> None:
    rng = np.random.default_rng(k)
    for n in (1, 15, 33):
        for m, dtype in ((1, "bfloat16"), (3, "float32"), (8, "bfloat16"), (17, "float32")):
            product = make_product(rng, (n,), k, scheme, bias=n % 3 == 0)
            check(module, product, rng.standard_normal((m, k)).astype(DTYPES[dtype]), 1 + m % 3)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_whole_numbers_are_exact(module: Any, dtype: str, scheme: QuantScheme) -> None:
    """Every point of every column is multiplied by its own k, whatever order sums have."""
    rng = np.random.default_rng(5)
    k = 300
    product = make_product(rng, (37,), k, scheme)
    part = product.parts[0]
    unscaled = replace(part, scales=np.ones_like(part.scales))
    one = replace(product, parts=(unscaled,))
    x = rng.integers(-16, 17, (40, k)).astype(DTYPES[dtype])
    exact, _ = sums(one, x)
    assert np.abs(exact).max() < 2**22
    for rows in (1, 5, 40):
        assert np.array_equal(one.run(module, x[:rows], 2), exact[:rows])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_joined_parts_share_panels(module: Any, scheme: QuantScheme) -> None:
    rng = np.random.default_rng(6)
    product = make_product(rng, (21, 3, 8, 16, 1), 66, scheme, bias=True)
    for threads, m in ((1, 2), (2, 9), (3, 30), (7, 4)):
        x = rng.standard_normal((m, 66)).astype(DTYPES["bfloat16" if m % 2 else "float32"])
        check(module, product, x, threads)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", "gelu", "relu", "relu2", "identity"])
@pytest.mark.parametrize("scheme", [SCHEMES[i] for i in (0, 1, 4, 14)], ids=str)
def test_gated(module: Any, scheme: QuantScheme, gate: str) -> None:
    rng = np.random.default_rng(7)
    for n, m, bias in ((1, 1, False), (16, 5, True), (37, 19, False), (80, 35, True)):
        product = make_product(rng, (n, n), 80, scheme, gate, bias)
        x = rng.standard_normal((m, 80)).astype(DTYPES["bfloat16" if m % 2 else "float32"])
        check(module, product, x, 2)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", ["none", "silu"])
def test_a_row_does_not_depend_on_its_batch(
    module: Any, gate: str, dtype: str, scheme: QuantScheme
) -> None:
    """Bitwise; 2500 of k by 300 rows make slices whose sums are carried, and chunks of columns."""
    rng = np.random.default_rng(8)
    for n, k, m in ((40, 96, 70), (36, 2500, 300)):
        product = make_product(rng, (n, n), k, scheme, gate, bias=True)
        x = rng.standard_normal((m, k)).astype(DTYPES[dtype])
        assert_rows_keep_to_themselves(module, product, x, (1, 2, 3, 5, 8, 17, 33))


@pytest.mark.parametrize("scheme", [SCHEMES[i] for i in (0, 1, 4, 14)], ids=str)
def test_blocks_of_rows(module: Any, scheme: QuantScheme) -> None:
    """More rows than are packed at once."""
    rng = np.random.default_rng(10)
    product = make_product(rng, (20,), 70, scheme)
    x = rng.standard_normal((1100, 70)).astype(ml_dtypes.bfloat16)
    whole = product.run(module, x, 2)
    for first in (0, 511, 600, 1099):
        assert np.array_equal(product.run(module, x[first : first + 1]), whole[first : first + 1])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_nan_and_infinity_stay_in_their_row(module: Any, scheme: QuantScheme) -> None:
    rng = np.random.default_rng(9)
    product = make_product(rng, (35,), 150, scheme)
    for m, dtype in ((2, "bfloat16"), (17, "float32"), (50, "bfloat16")):
        x = rng.standard_normal((m, 150)).astype(DTYPES[dtype])
        assert_bad_values_stay_in_their_row(module, product, x, 140)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_output_in_bfloat16_is_that_in_float32_rounded(module: Any, scheme: QuantScheme) -> None:
    rng = np.random.default_rng(13)
    product = make_product(rng, (45,), 200, scheme, bias=True)
    for m in (1, 20):
        x = rng.standard_normal((m, 200)).astype(ml_dtypes.bfloat16)
        assert_narrow_output_is_rounded(module, product, x)
