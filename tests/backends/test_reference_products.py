"""The reference's quantized products against products of what the codes stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.backends.reference.numerics import attend
from penstock.backends.reference.products import (
    grid_product,
    int_product,
    points_by_group,
    points_on_grid,
    product,
)
from penstock.quant import (
    GridScheme,
    GroupScheme,
    QuantScheme,
    quantize,
    quantize_to_grid,
)

SCHEMES: list[QuantScheme] = [
    GridScheme(8),
    GridScheme(4),
    *(
        GroupScheme(bits, size, zero_points)
        for bits in (8, 4)
        for size in (32, 64, None)
        for zero_points in (False, True)
    ),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_products_are_of_what_the_codes_stand_for(scheme: QuantScheme) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 100)).astype(np.float32)
    w = (rng.standard_normal((9, 100)) + 0.5).astype(np.float32)
    if isinstance(scheme, GridScheme):
        grid = quantize_to_grid(w, scheme)
        stands_for, floats = grid.dequantize(), points_on_grid(x, grid)
        transformed = quantize_to_grid(w, scheme, transformed=True)
        np.testing.assert_allclose(
            grid_product(x, transformed), x @ transformed.dequantize().T, rtol=0, atol=0.3
        )
        ints = grid_product(x, grid)
    else:
        tensor = quantize(w, scheme)
        stands_for, floats = tensor.dequantize(), points_by_group(x, tensor)
        ints = int_product(x, tensor)
    expected = x.astype(np.float64) @ stands_for.T.astype(np.float64)
    np.testing.assert_allclose(floats, expected, rtol=0, atol=2e-5)
    # Rounding x to 8 bits costs about 1 in 300 of a product of a hundred terms.
    error = np.abs(ints - expected)
    assert 1e-4 < error.mean() < 0.1


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(2, 9),
    n=st.integers(1, 20),
    k=st.integers(1, 300) | st.sampled_from([4097, 8192, 8193, 16384, 20000]),
    layout=st.sampled_from(["rows", "columns", "gathered", "cut"]),
    seed=st.integers(0, 99),
)
def test_a_row_of_a_product_is_the_same_with_any_others(
    rows: int, n: int, k: int, layout: str, seed: int
) -> None:
    """However x lies in memory, and where k is longer than what einsum sums without a cut."""
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal((m, k)).astype(np.float32) for m in (rows, n))
    by_rows = product(x, w)
    order = rng.permutation(k)
    if layout == "columns":
        x = np.asfortranarray(x)
    elif layout == "gathered":
        x, w = x[:, np.argsort(order)][:, order], np.asfortranarray(w)
    elif layout == "cut":
        x, w = np.hstack([x, x])[:, :k], np.hstack([w, w])[:, :k]
    np.testing.assert_array_equal(product(x, w), by_rows)
    for r in range(rows):
        np.testing.assert_array_equal(product(x[r : r + 1].copy(), w)[0], by_rows[r])
    np.testing.assert_array_equal(product(x, w[:1]), by_rows[:, :1])
    np.testing.assert_allclose(by_rows, x.astype(np.float64) @ w.T, rtol=0, atol=2e-3)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("multiply", [points_by_group, int_product])
def test_with_columns_in_another_order_too(bits: int, multiply: Any) -> None:
    rng = np.random.default_rng(bits)
    x, w = (rng.standard_normal((m, 200)).astype(np.float32) for m in (7, 9))
    tensor = quantize(w, GroupScheme(bits, 32, True))
    tensor = replace(tensor, order=rng.permutation(200).astype(np.int32))
    together = multiply(x, tensor)
    for r in range(7):
        np.testing.assert_array_equal(multiply(x[r : r + 1], tensor)[0], together[r])


@pytest.mark.parametrize("window", [None, 50])
def test_attention_of_a_token_is_the_same_in_any_chunk(window: int | None) -> None:
    rng = np.random.default_rng(0)
    q, keys, values = (rng.standard_normal((200, h, 8)).astype(np.float32) for h in (4, 2, 2))
    positions = np.arange(200, dtype=np.int32)
    whole = attend(q, keys, values, positions, 0.3, window)
    for first, last in [(0, 1), (0, 63), (1, 64), (7, 65), (100, 101), (128, 199), (199, 200)]:
        rows = slice(first, last)
        part = attend(q[rows], keys[:last], values[:last], positions[rows], 0.3, window)
        np.testing.assert_array_equal(part, whole[rows])
