"""Matrix products of every native variant that this machine runs, against float64.

``csrc/bench/gemm_bench.cpp check`` does the same without Python, for instruction sets alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native_arrays import as_bytes

pytestmark = pytest.mark.thinned(5)

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
WEIGHTS = ("float32", "bfloat16", "float16")
ACTIVATIONS = ("float32", "bfloat16")
THREADS = (1, 2, 3, 7)


@dataclass(frozen=True)
class Product:
    """A matrix of joined ``parts``, or of gate and up, in float64 and as stored."""

    parts: tuple[np.ndarray, ...]
    elem: str
    gate: str
    bias: np.ndarray | None

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        sizes: Sequence[int],
        k: int,
        elem: str,
        gate: str = "none",
        bias: bool = False,
    ) -> Product:
        parts = tuple(rng.standard_normal((n, k)).astype(DTYPES[elem]) for n in sizes)
        total = sum(sizes)
        return cls(
            parts, elem, gate, rng.standard_normal(total).astype(np.float32) if bias else None
        )

    def run(self, module: Any, x: np.ndarray, out_elem: str, threads: int) -> np.ndarray:
        """The native result, as bytes a row ``[m, n * element]``."""
        n = len(self.parts[0]) if self.gate != "none" else sum(len(p) for p in self.parts)
        out = np.full((len(x), n * np.dtype(DTYPES[out_elem]).itemsize), 0xA5, np.uint8)
        module.linear(
            parts=[(as_bytes(p), len(p)) for p in self.parts],
            elem=self.elem,
            k=x.shape[1],
            bias=self.bias,
            gate=self.gate,
            x=as_bytes(x),
            x_elem=x.dtype.name,
            out=out.reshape(-1),
            out_elem=out_elem,
            threads=threads,
        )
        return out

    def expected(self, x: np.ndarray, out_elem: str) -> tuple[np.ndarray, np.ndarray]:
        """The exact result and a bound of the error of any order of float32 accumulation."""
        eps = 2.0**-24 * (x.shape[1] + 4)
        wide = x.astype(np.float64)
        sums, sizes, first = [], [], 0
        for part in self.parts:
            w = part.astype(np.float64)
            b = 0.0 if self.bias is None else self.bias[first : first + len(w)].astype(np.float64)
            sums.append(wide @ w.T + b)
            sizes.append(np.abs(wide) @ np.abs(w).T + np.abs(b))
            first += len(w)
        if self.gate == "none":
            result, error = np.concatenate(sums, 1), eps * np.concatenate(sizes, 1)
        else:
            gated = activation(self.gate, sums[0])
            result = gated * sums[1]
            # No activation but the square is steeper than 1.2; each is itself good to 1e-5.
            steepest = 2 * np.abs(sums[0]) + 1.2 if self.gate == "relu2" else 1.2
            error = steepest * eps * sizes[0] * (np.abs(sums[1]) + eps * sizes[1])
            error += eps * sizes[1] * np.abs(gated) + 1e-5 * np.abs(result)
        if out_elem == "bfloat16":
            error = error + np.abs(result) * 2.0**-8
        return result, error + 1e-30


def activation(name: str, x: np.ndarray) -> np.ndarray:
    if name == "identity":
        return x
    if name in ("relu", "relu2"):
        return np.asarray(np.maximum(x, 0) ** (2 if name == "relu2" else 1))
    if name == "silu":
        factor = 1 / (1 + np.exp(-x))
    elif name == "gelu":
        factor = 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    else:
        factor = 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return np.asarray(x * factor)


def activations(rng: np.random.Generator, m: int, k: int, elem: str) -> np.ndarray:
    return rng.standard_normal((m, k)).astype(DTYPES[elem])


def check(module: Any, product: Product, x: np.ndarray, out_elem: str, threads: int) -> None:
    got = product.run(module, x, out_elem, threads).view(DTYPES[out_elem]).astype(np.float64)
    expected, error = product.expected(x, out_elem)
    assert got.shape == expected.shape
    np.testing.assert_array_less(np.abs(got - expected), error)


@pytest.mark.parametrize("x_elem", ACTIVATIONS)
@pytest.mark.parametrize("elem", WEIGHTS)
@pytest.mark.parametrize("k", [1, 2, 31, 80, 96, 688])
def test_odd_sizes(module: Any, k: int, elem: str, x_elem: str) -> None:
    rng = np.random.default_rng(k)
    for n in (1, 15, 17, 33):
        for m in (1, 7, 16, 40):
            product = Product.random(rng, (n,), k, elem, bias=n % 3 == 0)
            x = activations(rng, m, k, x_elem)
            check(module, product, x, "float32" if m % 2 else "bfloat16", 1 + m % 3)


@pytest.mark.parametrize("x_elem", ACTIVATIONS)
@pytest.mark.parametrize("elem", WEIGHTS)
def test_every_small_number_of_rows(module: Any, elem: str, x_elem: str) -> None:
    rng = np.random.default_rng(5)
    product = Product.random(rng, (49,), 70, elem)
    for m in range(1, 41):
        check(module, product, activations(rng, m, 70, x_elem), "float32", 2)


@pytest.mark.parametrize("elem", WEIGHTS)
def test_joined_parts_share_panels(module: Any, elem: str) -> None:
    rng = np.random.default_rng(6)
    product = Product.random(rng, (21, 3, 8, 16, 1), 66, elem, bias=True)
    for threads in THREADS:
        check(module, product, activations(rng, 9, 66, "bfloat16"), "float32", threads)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", "gelu", "relu", "relu2", "identity"])
@pytest.mark.parametrize("elem", WEIGHTS)
def test_gated(module: Any, elem: str, gate: str) -> None:
    rng = np.random.default_rng(7)
    for n, m, bias in ((1, 1, False), (16, 5, True), (37, 19, False), (80, 35, True)):
        product = Product.random(rng, (n, n), 48, elem, gate, bias)
        for out_elem in ("float32", "bfloat16"):
            check(module, product, activations(rng, m, 48, "bfloat16"), out_elem, 2)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("x_elem", ACTIVATIONS)
@pytest.mark.parametrize("elem", WEIGHTS)
@pytest.mark.parametrize("gate", ["none", "silu"])
def test_a_row_does_not_depend_on_its_batch(module: Any, gate: str, elem: str, x_elem: str) -> None:
    """Bitwise: any number of rows, any position, any number of threads; 2100 of k and 530 rows
    make several slices and row blocks of them."""
    rng = np.random.default_rng(8)
    for n, k, m in ((40, 96, 40), (70, 2100, 530)):
        product = Product.random(rng, (n, n), k, elem, gate, bias=True)
        x = activations(rng, m, k, x_elem)
        whole = product.run(module, x, "float32", 1)
        for threads in THREADS[1:]:
            assert np.array_equal(product.run(module, x, "float32", threads), whole)
        for rows in (1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 128, 129, 257, m - 1):
            for first in sorted({0, (m - rows) // 2, m - rows}):
                if rows > m or (rows > 40 and first):
                    continue
                part = product.run(module, x[first : first + rows], "float32", 1 + rows % 3)
                assert np.array_equal(part, whole[first : first + rows]), (rows, first)


@pytest.mark.parametrize("x_elem", ACTIVATIONS)
@pytest.mark.parametrize("elem", WEIGHTS)
def test_nan_and_infinity_stay_in_their_row(module: Any, elem: str, x_elem: str) -> None:
    rng = np.random.default_rng(9)
    product = Product.random(rng, (35,), 71, elem)
    for m in (2, 17, 50):
        x = activations(rng, m, 71, x_elem)
        clean = product.run(module, x, "float32", 2)
        for row in (0, m // 2, m - 1):
            poisoned = x.copy()
            poisoned[row, ::2] = np.nan
            poisoned[row, 1::2] = np.inf
            got = product.run(module, poisoned, "float32", 2)
            assert np.isnan(got[row].view(np.float32)).all()
            assert np.array_equal(np.delete(got, row, 0), np.delete(clean, row, 0))


def test_output_rounds_to_nearest_even(module: Any) -> None:
    """1 + 2^-8 lies between two bfloat16 numbers and goes to the even one, as 1 + 3 * 2^-8."""
    weight = np.array([[1, 2.0**-8], [1, 3 * 2.0**-8]], np.float32)
    product = Product((weight,), "float32", "none", None)
    got = product.run(module, np.ones((1, 2), np.float32), "bfloat16", 1)
    assert got.view(ml_dtypes.bfloat16).astype(np.float64).tolist() == [[1, 1 + 2.0**-6]]
