"""The reference's quantized products against products of what the codes stand for."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.backends.reference.numerics import (
    grid_product,
    int_product,
    points_by_group,
    points_on_grid,
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
