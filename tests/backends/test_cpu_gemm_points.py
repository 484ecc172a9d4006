"""Products of quantized weights with float activations, on every native variant that runs here.

The expected value is the sum in float64 of x times points, scaled; a float32 sum of k terms is
within k roundings of it. Rows must equal themselves bit by bit in any batch and on any number of
threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from native_arrays import as_bytes

from penstock.backends.reference.numerics import activate
from penstock.quant import (
    GridScheme,
    GridTensor,
    GroupScheme,
    GroupTensor,
    QuantScheme,
    dequantize,
    quantize,
    quantize_to_grid,
)

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
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


@dataclass(frozen=True)
class Product:
    parts: tuple[GridTensor | GroupTensor, ...]
    gate: str = "none"
    bias: np.ndarray | None = None

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        sizes: tuple[int, ...],
        k: int,
        scheme: QuantScheme,
        gate: str = "none",
        bias: bool = False,
    ) -> Product:
        def part(n: int) -> GridTensor | GroupTensor:
            matrix = (rng.standard_normal((n, k)) + 0.3).astype(np.float32)
            if isinstance(scheme, GridScheme):
                return quantize_to_grid(matrix, scheme)
            return quantize(matrix, scheme)

        shift = rng.standard_normal(sum(sizes)).astype(np.float32) if bias else None
        return cls(tuple(part(n) for n in sizes), gate, shift)

    def run(
        self, module: Any, x: np.ndarray, threads: int = 1, out_elem: str = "float32"
    ) -> np.ndarray:
        """The native result in ``out_elem``, ``[m, n]``."""
        total = sum(len(p.codes) for p in self.parts)
        n = total if self.gate == "none" else total // 2
        out = np.full((len(x), n * np.dtype(DTYPES[out_elem]).itemsize), 0xA5, np.uint8)
        options = {
            "bits": self.parts[0].scheme.bits,
            "bias": self.bias,
            "gate": self.gate,
            "x": as_bytes(x),
            "x_elem": x.dtype.name,
            "out": out.reshape(-1),
            "out_elem": out_elem,
            "weight_only": True,
            "threads": threads,
        }
        if isinstance(self.parts[0], GridTensor):
            module.grid_linear(
                parts=[(p.codes, p.windows, p.scales) for p in self.parts], **options
            )
        else:
            group = self.parts[0].scheme.group_size or 0
            module.int_linear(
                parts=[(p.codes, p.scales, p.zeros) for p in self.parts], group=group, **options
            )
        return out.view(DTYPES[out_elem])

    def sums(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums with bias ``[m, total]`` in float64, and the sums of their terms' sizes."""
        w = np.concatenate(
            [p.dequantize() if isinstance(p, GridTensor) else dequantize(p) for p in self.parts]
        ).astype(np.float64)
        wide = x.astype(np.float64)
        result, magnitude = wide @ w.T, np.abs(wide) @ np.abs(w).T
        if self.bias is not None:
            result += self.bias
            magnitude += np.abs(self.bias)
        return result, magnitude


def check(module: Any, product: Product, x: np.ndarray, threads: int) -> None:
    expected, magnitude = product.sums(x)
    # A chain of k additions is seldom wrong by more than some sqrt(k) roundings.
    error = magnitude * 2.0**-24 * (8 + 4 * np.sqrt(x.shape[1])) + 1e-30
    got = product.run(module, x, threads).astype(np.float64)
    if product.gate != "none":
        n = len(product.parts[0].codes)
        gated = activate(expected[:, :n].astype(np.float32), product.gate).astype(np.float64)
        slope = 1.2 * error[:, :n] + 1e-5 * np.abs(gated) + 1e-7
        error = slope * np.abs(expected[:, n:]) + error[:, n:] * (np.abs(gated) + slope)
        expected = gated * expected[:, n:]
    np.testing.assert_array_less(np.abs(got - expected), error)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("k", [1, 5, 31, 64, 100, 257, 688])
def test_odd_sizes(module: Any, k: int, scheme: QuantScheme) -> None:
    rng = np.random.default_rng(k)
    for n in (1, 15, 33):
        for m, dtype in ((1, "bfloat16"), (3, "float32"), (8, "bfloat16"), (17, "float32")):
            product = Product.random(rng, (n,), k, scheme, bias=n % 3 == 0)
            check(module, product, rng.standard_normal((m, k)).astype(DTYPES[dtype]), 1 + m % 3)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_whole_numbers_are_exact(module: Any, dtype: str, scheme: QuantScheme) -> None:
    """Every point of every column is multiplied by its own k, whatever order sums have."""
    rng = np.random.default_rng(5)
    k = 300
    product = Product.random(rng, (37,), k, scheme)
    part = product.parts[0]
    one = Product((type(part)(**(vars(part) | {"scales": np.ones_like(part.scales)})),))
    x = rng.integers(-16, 17, (40, k)).astype(DTYPES[dtype])
    exact, _ = one.sums(x)
    assert np.abs(exact).max() < 2**22
    for rows in (1, 5, 40):
        assert np.array_equal(one.run(module, x[:rows], 2), exact[:rows])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_joined_parts_share_panels(module: Any, scheme: QuantScheme) -> None:
    rng = np.random.default_rng(6)
    product = Product.random(rng, (21, 3, 8, 16, 1), 66, scheme, bias=True)
    for threads, m in ((1, 2), (2, 9), (3, 30), (7, 4)):
        x = rng.standard_normal((m, 66)).astype(DTYPES["bfloat16" if m % 2 else "float32"])
        check(module, product, x, threads)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("scheme", [SCHEMES[i] for i in (0, 1, 4, 14)], ids=str)
def test_gated(module: Any, scheme: QuantScheme, gate: str) -> None:
    rng = np.random.default_rng(7)
    for n, m, bias in ((1, 1, False), (16, 5, True), (37, 19, False), (80, 35, True)):
        product = Product.random(rng, (n, n), 80, scheme, gate, bias)
        x = rng.standard_normal((m, 80)).astype(DTYPES["bfloat16" if m % 2 else "float32"])
        check(module, product, x, 2)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", ["none", "silu"])
def test_a_row_does_not_depend_on_its_batch(
    module: Any, gate: str, dtype: str, scheme: QuantScheme
) -> None:
    """Bitwise; 2500 of k by 300 rows make slices whose sums are carried, and chunks of columns."""
    rng = np.random.default_rng(8)
    for n, k, m in ((40, 96, 70), (36, 2500, 300)):
        product = Product.random(rng, (n, n), k, scheme, gate, bias=True)
        x = rng.standard_normal((m, k)).astype(DTYPES[dtype])
        whole = product.run(module, x)
        for threads in (2, 3):
            assert np.array_equal(product.run(module, x, threads), whole)
        for rows in (1, 2, 3, 5, 8, 17, 33, m - 1):
            for first in sorted({0, (m - rows) // 2, m - rows}):
                if rows > 40 and first:
                    continue
                part = product.run(module, x[first : first + rows], 1 + rows % 3)
                assert np.array_equal(part, whole[first : first + rows]), (rows, first)


@pytest.mark.parametrize("scheme", [SCHEMES[i] for i in (0, 1, 4, 14)], ids=str)
def test_blocks_of_rows(module: Any, scheme: QuantScheme) -> None:
    """More rows than are packed at once."""
    rng = np.random.default_rng(10)
    product = Product.random(rng, (20,), 70, scheme)
    x = rng.standard_normal((1100, 70)).astype(ml_dtypes.bfloat16)
    whole = product.run(module, x, 2)
    for first in (0, 511, 600, 1099):
        assert np.array_equal(product.run(module, x[first : first + 1]), whole[first : first + 1])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_nan_and_infinity_stay_in_their_row(module: Any, scheme: QuantScheme) -> None:
    rng = np.random.default_rng(9)
    product = Product.random(rng, (35,), 150, scheme)
    for m, dtype in ((2, "bfloat16"), (17, "float32"), (50, "bfloat16")):
        x = rng.standard_normal((m, 150)).astype(DTYPES[dtype])
        clean = product.run(module, x, 2)
        for value in (np.nan, np.inf, -np.inf):
            poisoned = x.copy()
            poisoned[m // 2, 140] = value
            got = product.run(module, poisoned, 2)
            assert not np.isfinite(got[m // 2]).any()
            assert np.array_equal(np.delete(got, m // 2, 0), np.delete(clean, m // 2, 0))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_output_in_bfloat16_is_that_in_float32_rounded(module: Any, scheme: QuantScheme) -> None:
    rng = np.random.default_rng(13)
    product = Product.random(rng, (45,), 200, scheme, bias=True)
    for m in (1, 20):
        x = rng.standard_normal((m, 200)).astype(ml_dtypes.bfloat16)
        wide = product.run(module, x).astype(ml_dtypes.bfloat16)
        assert np.array_equal(product.run(module, x, out_elem="bfloat16"), wide)
