"""LDLQ beside its definition, and what turned matrices lose beside other methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.backends.gram import Gram
from penstock.errors import WeightError
from penstock.quant.lattice_matrix import LatticeMatrix
from penstock.quant.scheme import LatticeBits, LatticeScheme
from penstock.quant.turn import Turn
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.forms.lattice import Lattice
from penstock.quantize.gptq import gptq
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.hessian import Hessian
from penstock.quantize.ldlq import ldlq
from penstock.quantize.methods import Quip, RoundToNearest

Floats = np.ndarray[Any, Any]
N, K = 96, 160


def inputs(tokens: int = 900, columns: int = K) -> Floats:
    """Rows whose columns are of different sizes and depend on each other, as a model's are."""
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(tokens, columns // 4)) @ rng.normal(size=(columns // 4, columns))
    sizes = np.exp(rng.normal(size=columns))
    return ((mixed + rng.normal(size=(tokens, columns))) * sizes).astype(np.float32)


def weights(rows: int = N, columns: int = K) -> Floats:
    """Some are much larger than the others."""
    rng = np.random.default_rng(1)
    made = rng.normal(size=(rows, columns)) * np.exp(rng.normal(size=(rows, 1)))
    made[rng.random(made.shape) < 0.01] *= 8
    return made.astype(np.float32)


def loss(made: Floats, matrix: Floats, x: Floats) -> float:
    exact = x.astype(np.float64) @ matrix.T.astype(np.float64)
    outputs = x.astype(np.float64) @ (made.astype(np.float64) - matrix).T
    return float(np.square(outputs).sum() / np.square(exact).sum())


def to_integers(x: Floats, block: int) -> Floats:
    return np.rint(x)


def test_ldlq_is_its_definition_by_blocks() -> None:
    """The last blocks first; each is moved by the errors of those behind it, as the block of the
    factor between them says, which is found here by eliminating blocks one at a time."""
    matrix, x = weights(7), inputs()
    hessian = (x.T @ x).astype(np.float64)
    made = ldlq(matrix, hessian, to_integers, 0.01, "m").astype(np.float64)
    damped = hessian + 0.01 * np.diagonal(hessian).mean() * np.eye(K)
    lower, left = np.eye(K), damped.copy()
    for at in range(0, K, 8):
        own, later = slice(at, at + 8), slice(at + 8, K)
        lower[later, own] = left[later, own] @ np.linalg.inv(left[own, own])
        left[later, later] -= lower[later, own] @ left[own, later]
    expected = np.zeros(matrix.shape)
    for at in reversed(range(0, K, 8)):
        own, later = slice(at, at + 8), slice(at + 8, K)
        moved = (matrix[:, later] - expected[:, later]) @ lower[later, own]
        expected[:, own] = np.rint(matrix[:, own] + moved)
    assert (made != expected).mean() < 0.01  # where float32 decides between two halves
    assert loss(made, matrix, x) == pytest.approx(loss(expected, matrix, x), rel=0.02)
    assert loss(made, matrix, x) < 0.5 * loss(np.rint(matrix), matrix, x)


def test_a_hessian_that_is_none_is_refused_with_the_matrix() -> None:
    hessian = np.eye(K, dtype=np.float32)
    hessian[0, 1] = hessian[1, 0] = 1e6
    with pytest.raises(WeightError, match=r"the Hessian of layer\.q has no inverse"):
        ldlq(weights(), hessian, to_integers, 0.01, "layer.q")


def losses(matrix: Floats, x: Floats, bits: LatticeBits) -> tuple[float, float, float]:
    """Those of QuIP#, GPTQ and rounding to nearest, of about as many bits each: the last two have
    one scale a row."""
    hessian = x.T @ x
    made = Lattice(bits, 0).rounded(matrix, hessian, 0.01, "m").dequantize()
    grid = IntegerGrid(bits, None, True, "float32")
    later = gptq(matrix, hessian, grid, "static", 0.01, "m").dequantize()
    nearest = Integers(grid, STORAGES["gptq"]).round(matrix, "m").dequantize()
    return loss(made, matrix, x), loss(later, matrix, x), loss(nearest, matrix, x)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_outputs_lose_less_than_with_other_methods(bits: LatticeBits) -> None:
    ours, later, nearest = losses(weights(), inputs(), bits)
    assert ours < later < nearest
    if bits == 2:
        assert ours < 0.6 * later


def test_more_bits_lose_less() -> None:
    found = [losses(weights(), inputs(), bits)[0] for bits in (2, 3, 4)]
    assert found[1] < 0.5 * found[0]
    assert found[2] < 0.5 * found[1]


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("shape", [(96, 160), (40, 172), (7, 12), (1, 8)])
def test_what_is_stored_is_what_was_chosen(shape: tuple[int, int], bits: LatticeBits) -> None:
    """Also where a row is no whole number of points."""
    matrix = weights(*shape)
    made = Lattice(bits, 9).round(matrix, "m")
    arrays = made.arrays()
    assert arrays["weight_codes"].shape == (shape[0], -(-shape[1] // 8), bits)
    assert arrays["weight_codes"].dtype == np.uint8
    again = LatticeMatrix(
        LatticeScheme(bits, 9), arrays["weight_codes"], arrays["weight_scale"][0], shape[1]
    )
    assert np.array_equal(again.dequantize(), made.dequantize())
    error = np.square(made.dequantize() - matrix).sum() / np.square(matrix).sum()
    if shape == (96, 160):  # turned as a whole
        assert error < {2: 0.1, 3: 0.035, 4: 0.01}[bits]


def test_a_matrix_is_what_its_definition_says() -> None:
    """Both turns as matrices, in float64."""
    made = Lattice(3, 4).round(weights(), "m").matrix
    columns = Turn(K, 4, "input").forward(np.eye(K)).astype(np.float64)
    rows = Turn(N, 4, "output").forward(np.eye(N)).astype(np.float64)
    expected = rows @ (made.points() * float(made.scale)) @ columns.T
    assert np.allclose(made.dequantize(), expected, atol=1e-4)


def test_zeros_stay_zeros() -> None:
    made = Lattice(2, 0).round(np.zeros((16, 24), np.float32), "m")
    assert not made.dequantize().any()


def test_values_too_large_are_refused_with_the_matrix() -> None:
    with pytest.raises(WeightError, match=r"layer\.q has values too large"):
        Lattice(2, 0).round(np.full((16, 24), 3e38, np.float32), "layer.q")


def test_rounding_to_nearest_needs_no_text() -> None:
    hessian = Hessian(K, Gram())
    hessian.add(inputs())
    plain = RoundToNearest(Lattice(2, 0)).rounded(weights(), None, "m").dequantize()
    better = Quip(Lattice(2, 0)).rounded(weights(), hessian, "m").dequantize()
    assert hessian.loss(better - weights()) < 0.8 * hessian.loss(plain - weights())
