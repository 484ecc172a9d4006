"""2:4 sparsity: which weights stay, and what they become."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.fitted_spans import fitted
from support.fours import zeros_of_fours

from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.forms.sparse import compressed
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.sparsity import CodeColumns, FloatColumns, by_magnitude, sparsegpt

Floats = np.ndarray[Any, Any]
N, K = 16, 192


def inputs(tokens: int = 600, columns: int = K) -> Floats:
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(tokens, columns // 4)) @ rng.normal(size=(columns // 4, columns))
    sizes = np.exp(rng.normal(size=columns))
    return ((mixed + rng.normal(size=(tokens, columns))) * sizes).astype(np.float32)


def weights(rows: int = N, columns: int = K) -> Floats:
    return np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32)


def loss(made: Floats, matrix: Floats, x: Floats) -> float:
    return float(((x.astype(np.float64) @ (made - matrix).T.astype(np.float64)) ** 2).sum())


@given(arrays.arrays(np.float32, (3, 8), elements=st.floats(-4, 4, width=16)))
def test_the_largest_two_of_four_stay(matrix: Floats) -> None:
    kept = by_magnitude(matrix)
    for row, mask in zip(matrix.reshape(-1, 4), kept.reshape(-1, 4), strict=True):
        pairs = itertools.combinations(range(4), 2)
        best = max(np.abs(row[list(pair)]).astype(np.float64).sum() for pair in pairs)
        assert mask.sum() == 2
        assert np.abs(row[mask]).astype(np.float64).sum() == best


def reference(matrix: Floats, x: Floats, damping: float, grid: IntegerGrid | None) -> Floats:
    """Optimal brain surgery in float64, each inverse computed anew."""
    hessian = x.astype(np.float64).T @ x.astype(np.float64)
    k = matrix.shape[1]
    hessian[np.diag_indices(k)] += damping * np.diagonal(hessian).mean()
    left = matrix.astype(np.float64)
    result = np.zeros_like(left)
    size = k if grid is None else k // grid.groups(k)
    lost = np.array([1 / np.linalg.inv(hessian[i:, i:])[0, 0] for i in range(k)])

    def kept(first: int, end: int) -> Floats:
        costs = (left[:, first:end] ** 2 * lost[first:end]).reshape(len(left), -1, 4)
        order = np.argsort(np.argsort(-costs, axis=2, kind="stable"), axis=2)
        return (order < 2).reshape(len(left), -1)

    for i in range(k):
        if grid is not None and i % size == 0:
            own = np.where(kept(i, i + size), left[:, i : i + size], 0).astype(np.float32)
            scale, zero = fitted(own, lost[i : i + size], grid)
        if i % 4 == 0:
            stays = kept(i, i + 4)
        column = np.where(stays[:, i % 4], left[:, i], 0)
        if grid is not None:
            code = np.clip(np.round(column / scale) + zero, 0, grid.highest)
            column = (code - zero) * scale
        result[:, i] = column
        inverse = np.linalg.inv(hessian[i:, i:])
        left[:, i:] -= np.outer((left[:, i] - column) / inverse[0, 0], inverse[0])
    return result


@pytest.mark.parametrize(
    "grid",
    [
        None,
        IntegerGrid(4, 32, True, "float32"),
        IntegerGrid(8, None, True, "float32"),
        IntegerGrid(4, 96, False, "float32"),
    ],
    ids=str,
)
def test_sparsegpt_is_that_of_the_reference(grid: IntegerGrid | None) -> None:
    matrix, x = weights(), inputs()
    columns = FloatColumns((N, K), "float32") if grid is None else CodeColumns((N, K), grid)
    sparsegpt(matrix, x.T @ x, columns, 0.01, "m")
    whole = columns.matrix
    made = whole if isinstance(whole, np.ndarray) else whole.dequantize()
    assert (zeros_of_fours(made) >= 2).all()
    expected = loss(reference(matrix, x, 0.01, grid), matrix, x)
    assert loss(made, matrix, x) == pytest.approx(expected, rel=0.01)
    kept = np.where(by_magnitude(matrix), matrix, np.float32(0))
    if grid is not None:
        kept = Integers(grid, STORAGES["gptq"]).round(kept, "m").dequantize()
    assert loss(made, matrix, x) < 0.6 * loss(kept, matrix, x)


def test_one_four_alone_is_near_to_the_best_of_all_masks() -> None:
    """The best of the six masks, each with the best values there are for it, by least squares."""
    matrix, x = weights(200, 4), inputs(300, 4)
    columns = FloatColumns(matrix.shape, "float32")
    sparsegpt(matrix, x.T @ x, columns, 1e-6, "m")
    losses = []
    for pair in itertools.combinations(range(4), 2):
        own = x[:, pair].astype(np.float64)
        solved = np.linalg.lstsq(own, x.astype(np.float64) @ matrix.T.astype(np.float64))[1]
        losses.append(solved)
    best = np.min(losses, axis=0)
    error = (x.astype(np.float64) @ (columns.matrix - matrix).T.astype(np.float64)) ** 2
    assert best.sum() * (1 - 1e-6) < error.sum() < 1.6 * best.sum()


def test_columns_that_multiply_zeros_go_first() -> None:
    matrix, x = weights(), inputs()
    x[:, [4, 6]] = 0
    columns = FloatColumns((N, K), "float32")
    sparsegpt(matrix, x.T @ x, columns, 0.01, "m")
    assert not columns.matrix[:, [4, 6]].any()
    assert columns.matrix[:, [5, 7]].all()


def test_values_are_those_that_the_type_has() -> None:
    columns = FloatColumns((N, K), "bfloat16")
    sparsegpt(weights(), inputs().T @ inputs(), columns, 0.01, "m")
    assert not (columns.matrix.view(np.uint32) & 0xFFFF).any()


def test_what_is_compressed_is_as_it_was_defined() -> None:
    """Bits from the lowest of a byte on; zeros where a four has too few weights."""
    matrix = np.array([[0, 5, 0, -3, 1, 0, 0, 0, 0, 0, 0, 0]], np.float32)
    made = compressed(matrix, matrix)
    assert made["compressed"].tolist() == [[5, -3, 1, 0, 0, 0]]
    assert made["bitmask"].tolist() == [[0b00111010, 0b0011]]
    assert made["shape"].tolist() == [[1], [12]]
