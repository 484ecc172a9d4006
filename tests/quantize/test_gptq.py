"""GPTQ beside the same in float64 and one column at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.fitted_spans import fitted

from penstock.backends.gram import Gram
from penstock.errors import WeightError
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.gptq import Order, gptq
from penstock.quantize.grid import IntegerGrid, IntegerMatrix
from penstock.quantize.hessian import Hessian
from penstock.quantize.methods import Gptq

Floats = np.ndarray[Any, Any]
N, K = 24, 192


def inputs(tokens: int = 600, columns: int = K, seed: int = 0) -> Floats:
    """Rows whose columns are of different sizes and depend on each other, as a model's are."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(tokens, columns // 4)) @ rng.normal(size=(columns // 4, columns))
    sizes = np.exp(rng.normal(size=columns))
    return ((mixed + rng.normal(size=(tokens, columns))) * sizes).astype(np.float32)


def weights(seed: int = 1, columns: int = K) -> Floats:
    return np.random.default_rng(seed).normal(size=(N, columns)).astype(np.float32)


def nearest(matrix: Floats, grid: IntegerGrid) -> IntegerMatrix:
    return Integers(grid, STORAGES["gptq"]).round(matrix, "m").matrix


def loss(made: IntegerMatrix, matrix: Floats, x: Floats) -> float:
    outputs = x.astype(np.float64) @ (made.dequantize() - matrix).T.astype(np.float64)
    return float((outputs**2).sum())


def reference(matrix: Floats, x: Floats, grid: IntegerGrid, order: Order, damping: float) -> Floats:
    """Optimal brain surgery as it is defined: after each column, the inverse of the Hessian of the
    columns that are left is computed anew. float64 ``[n, k]``."""
    hessian = x.astype(np.float64).T @ x.astype(np.float64)
    k = len(hessian)
    places = np.argsort(-np.diagonal(hessian), kind="stable") if order != "none" else np.arange(k)
    size = grid.group_size or k
    hessian[np.diag_indices(k)] += damping * np.diagonal(hessian).mean()
    left = matrix.astype(np.float64)
    result = np.empty_like(left)
    # What columns behind cannot make up for of an error of each, once those before are rounded.
    lost = np.array(
        [1 / np.linalg.inv(hessian[np.ix_(places[i:], places[i:])])[0, 0] for i in range(k)]
    )
    of_columns = lost[np.argsort(places)]
    fits: dict[int, tuple[Floats, Floats]] = {}
    if order == "static":
        for group in range(k // size):
            own = slice(group * size, (group + 1) * size)
            fits[group] = fitted(matrix[:, own], of_columns[own], grid)
    for i, column in enumerate(places):
        ahead = places[i:]
        group = int(column) // size if order == "static" else i // size
        if group not in fits:
            own = left[:, places[i : i + size]].astype(np.float32)
            fits[group] = fitted(own, lost[i : i + size], grid)
        scale, zero = fits[group]
        code = np.clip(np.round(left[:, column] / scale) + zero, 0, grid.highest)
        result[:, column] = (code - zero) * scale
        inverse = np.linalg.inv(hessian[np.ix_(ahead, ahead)])
        error = (left[:, column] - result[:, column]) / inverse[0, 0]
        left[:, ahead] -= np.outer(error, inverse[0])
    return result


@pytest.mark.parametrize("order", ["static", "group", "none"])
@pytest.mark.parametrize("group", [None, 32, 96])
@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (3, False)])
def test_the_error_is_that_of_the_reference(
    bits: int, symmetric: bool, group: int | None, order: Order
) -> None:
    matrix, x = weights(), inputs()
    grid = IntegerGrid(bits, group, symmetric, "float32")
    hessian = Hessian(K, Gram())
    for part in np.array_split(x, 5):
        hessian.add(part)
    made = gptq(matrix, hessian.sums("m"), grid, order, 0.01, "m")
    expected = x.astype(np.float64) @ (reference(matrix, x, grid, order, 0.01) - matrix).T
    assert loss(made, matrix, x) == pytest.approx((expected**2).sum(), rel=0.01)
    assert loss(made, matrix, x) < 0.7 * loss(nearest(matrix, grid), matrix, x)
    assert (made.group_of is not None) == (order == "group" and group is not None)


@pytest.mark.slow
def test_groups_that_end_behind_a_block_of_columns_know_of_all_errors_before() -> None:
    matrix, x = weights(columns=576), inputs(2000, 576)
    grid = IntegerGrid(4, 192, True, "float32")
    made = gptq(matrix, x.T @ x, grid, "none", 0.01, "m")
    expected = x.astype(np.float64) @ (reference(matrix, x, grid, "none", 0.01) - matrix).T
    assert loss(made, matrix, x) == pytest.approx((expected**2).sum(), rel=0.01)


def test_columns_that_multiply_zeros_become_zeros() -> None:
    matrix, x = weights(), inputs()
    x[:, 5] = x[:, 77] = 0
    grid = IntegerGrid(4, 32, True, "float32")
    made = gptq(matrix, x.T @ x, grid, "static", 0.01, "m")
    assert not made.dequantize()[:, [5, 77]].any()
    clean = matrix.copy()
    clean[:, [5, 77]] = 0
    assert loss(made, clean, x) < loss(nearest(clean, grid), clean, x)


def test_nothing_but_zeros_is_rounded_to_nearest_zeros() -> None:
    made = gptq(weights(), np.zeros((K, K), np.float32), _grid(), "static", 0.01, "m")
    assert not made.dequantize().any()


def test_fewer_tokens_than_columns_are_damped() -> None:
    matrix, x = weights(), inputs(12)
    made = gptq(matrix, x.T @ x, _grid(), "static", 0.01, "m")
    assert loss(made, matrix, x) < loss(nearest(matrix, _grid()), matrix, x)


def test_a_hessian_that_is_none_is_refused_with_the_matrix() -> None:
    hessian = np.eye(K, dtype=np.float32)
    hessian[0, 1] = hessian[1, 0] = 1e6
    with pytest.raises(WeightError, match=r"the Hessian of layer\.q has no inverse"):
        gptq(weights(), hessian, _grid(), "none", 0.01, "layer.q")


def test_inputs_that_are_not_finite_are_refused_with_the_matrix() -> None:
    hessian = Hessian(K, Gram())
    x = inputs()
    x[3, 4] = np.inf
    with np.errstate(invalid="ignore"):
        hessian.add(x)
    with pytest.raises(WeightError, match=r"what layer\.q multiplies is not finite"):
        Gptq(Integers(_grid(), STORAGES["gptq"])).rounded(weights(), hessian, "layer.q")


@pytest.mark.parametrize("some", [True, False])
def test_a_hessian_may_be_read_between_rows(some: bool) -> None:
    """More columns than a block of the native sums, of which one triangle alone is summed."""
    x = np.random.default_rng(8).normal(size=(60, 300)).astype(np.float32)
    hessian = Hessian(300, Gram(), some=some)
    for part in np.array_split(x, 3):
        hessian.add(part)
        sums = hessian.sums("m")
    assert np.array_equal(sums, sums.T)
    assert np.allclose(sums, x.T @ x, rtol=1e-4, atol=1e-3)


def test_the_loss_of_a_hessian_is_that_of_outputs() -> None:
    matrix, x = weights(), inputs()
    hessian = Hessian(K, Gram())
    hessian.add(x)
    assert hessian.tokens == len(x)
    assert hessian.loss(matrix) == pytest.approx(float(((x @ matrix.T) ** 2).sum()), rel=1e-3)


def _grid() -> IntegerGrid:
    return IntegerGrid(4, 32, True, "float32")
