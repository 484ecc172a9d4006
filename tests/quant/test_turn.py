"""Hadamard's matrices, and vectors turned by them."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.quant.paley import paley_matrix
from penstock.quant.turn import Side, Turn, block_factors

ORDERS = [4, 8, 12, 20, 24, 28, 32, 36, 44, 48, 52, 60, 76, 84, 108, 140, 148, 180, 196, 344, 924]


@pytest.mark.parametrize("order", ORDERS)
def test_rows_of_paleys_matrices_are_orthogonal(order: int) -> None:
    matrix = paley_matrix(order)
    assert matrix is not None
    wide = matrix.astype(np.int64)
    assert set(np.unique(wide)) == {-1, 1}
    assert np.array_equal(wide @ wide.T, order * np.eye(order, dtype=np.int64))


def test_fields_whose_order_is_a_power_of_a_prime_have_matrices() -> None:
    # 28 - 1 = 3**3, and (20 / 2) - 1 = 9 = 3**2, though 20 has one of 19, too; 52 of 25 alone.
    for order in (28, 52, 344):
        assert paley_matrix(order) is not None


@pytest.mark.parametrize("order", [0, 1, 2, 6, 16, 92, 172, 2048])
def test_other_orders_have_none(order: int) -> None:
    assert paley_matrix(order) is None


@pytest.mark.parametrize(
    ("size", "factors"),
    [
        (1, (1, 1)),
        (8, (8, 1)),
        (640, (32, 20)),
        (1152, (32, 36)),
        (4864, (64, 76)),
        (5120, (256, 20)),
        (6912, (64, 108)),
        (11008, (32, 344)),
        (14336, (512, 28)),
        (29568, (32, 924)),
    ],
)
def test_vectors_of_usual_sizes_are_one_block(size: int, factors: tuple[int, int]) -> None:
    assert block_factors(size) == factors
    assert factors[0] * factors[1] == size


@pytest.mark.parametrize(("size", "block"), [(172, 4), (22, 2), (7, 1), (92, 4), (1376, 1376)])
def test_where_there_is_no_matrix_the_largest_part_has_one(size: int, block: int) -> None:
    assert Turn(size, 0, "input").block == block


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("size", [1, 7, 8, 40, 64, 172, 344, 640])
def test_turning_is_orthogonal_and_can_be_undone(size: int, side: Side) -> None:
    turn = Turn(size, 5, side)
    matrix = turn.forward(np.eye(size, dtype=np.float32)).astype(np.float64)
    assert np.allclose(matrix @ matrix.T, np.eye(size), atol=1e-5)
    x = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)
    assert np.allclose(turn.forward(x), x @ matrix, atol=1e-4)
    assert np.allclose(turn.back(turn.forward(x)), x, atol=1e-5)


def test_one_large_component_is_spread_over_all() -> None:
    x = np.zeros((1, 640), np.float32)
    x[0, 77] = 640**0.5
    assert np.allclose(np.abs(Turn(640, 1, "input").forward(x)), 1, atol=1e-4)


def test_signs_are_of_the_seed_and_the_side() -> None:
    turns = [Turn(4096, seed, side) for seed in (0, 1, 2**31 - 1) for side in ("input", "output")]
    for i, turn in enumerate(turns):
        assert set(np.unique(turn.signs)) == {-1, 1}
        assert abs(turn.signs.mean()) < 0.06
        for other in turns[:i]:
            assert abs((turn.signs * other.signs).mean()) < 0.06


def test_a_row_has_the_same_bits_whatever_the_others_are() -> None:
    turn = Turn(640, 3, "input")
    x = np.random.default_rng(1).normal(size=(9, 640)).astype(np.float32)
    whole, back = turn.forward(x), turn.back(x)
    for i in range(len(x)):
        assert np.array_equal(turn.forward(x[i : i + 1])[0], whole[i])
        assert np.array_equal(turn.back(x[i : i + 1])[0], back[i])
