"""Tiles of products: arithmetic alone."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

import torch

from penstock.backends.cuda.kernels import launch
from penstock.backends.cuda.kernels.tiles import (
    MAX_PARALLEL,
    UNIT,
    Kind,
    choose,
    row_steps,
    splits_of,
)
from penstock.backends.cuda.matrix import Shape, make_matrix
from penstock.backends.cuda.warm_up import warm_rows
from penstock.backends.cuda.workspace import Workspace, carved_bytes
from penstock.quant import GridScheme, GroupScheme, QuantScheme

SHAPES = [(1, 128), (64, 2048), (1024, 4096), (4096, 4096), (4096, 14336), (152064, 1024)]
KINDS = [
    Kind(16, 2),
    Kind(16, 2, gated=True),
    Kind(32, 4),
    Kind(8, 1, integers=True, depth=128),
    Kind(4, 2, depth=128),
    Kind(4, 1, integers=True, by_group=True, depth=128, gated=True),
    Kind(4, 2, by_group=True, depth=128),
    Kind(8, 2, by_group=True, depth=64, gated=True),
]
SHARED_KIB = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_tiles_fit_and_their_splits_cover_k(kind: Kind) -> None:
    for (n, k), rows, at in itertools.product(SHAPES, (1, 16, 17, 64, 65, 300, 4096), SHARED_KIB):
        tile = choose(kind, rows, n, k, at)
        per_column = tile.cols * kind.weight_bits // 8 + tile.rows * kind.x_bytes
        assert tile.stages * tile.unroll * tile.depth * per_column <= SHARED_KIB[at] * 1024
        assert (tile.splits - 1) * tile.length < k <= tile.splits * tile.length
        assert tile.splits == 1 or tile.length % UNIT == 0
        tiles = -(-rows // tile.rows) * -(-n // tile.cols)
        assert not tile.parallel or tiles <= MAX_PARALLEL
        if not kind.integers:  # the order of additions is one for all numbers of rows
            assert (tile.splits, tile.length) == splits_of(n, k)
            assert tile.cols >= 64
        elif kind.by_group:
            assert tile.splits == 1


def test_tiles_change_at_row_steps_alone() -> None:
    steps = row_steps(2100)
    for kind, (n, k) in itertools.product(KINDS, SHAPES[1:5]):
        for rows in range(1, 2101):
            upper = next(step for step in steps if step >= rows)
            assert choose(kind, rows, n, k, (9, 0)) == choose(kind, upper, n, k, (9, 0))


@pytest.mark.parametrize("at", [(8, 0), (8, 9), (9, 0), (10, 0)])
def test_few_rows_use_every_tile_that_any_number_can(at: tuple[int, int]) -> None:
    """Shapes of Llama 8B: where sums are exact, rows choose the splits, too."""
    shapes = [Shape(6144, 4096, 2048), Shape(4096, 4096, 2048), Shape(14336, 4096, 2048, True)]
    shapes += [Shape(4096, 14336, 2048), Shape(128256, 4096, 300)]
    nowhere = Workspace(torch.device("meta"), at)
    for scheme in (GridScheme(8), GridScheme(4, 32), GroupScheme(4, 128), None):
        matrices = [
            make_matrix(shape, "bfloat16", scheme, nowhere, torch.bfloat16) for shape in shapes
        ]
        rows = warm_rows(matrices, 2048)
        assert len(rows) <= 24
        for matrix in matrices:
            most = matrix.shape.max_rows
            warmed = {matrix.tile(min(n, most)) for n in rows}
            assert warmed == {matrix.tile(n) for n in range(1, most + 1)}


def test_what_torch_multiplies_has_no_tiles() -> None:
    nowhere = Workspace(torch.device("meta"))
    shape = Shape(300, 1100, 90)
    matrix = make_matrix(shape, "bfloat16", None, nowhere, torch.bfloat16, deterministic=False)
    assert matrix.tile(16) is None
    assert warm_rows([matrix], 90) == warm_rows([], 90) == (90,)


@pytest.mark.parametrize(
    "scheme", [None, GridScheme(8), GridScheme(4, 32), GroupScheme(4, 32, True)], ids=str
)
@pytest.mark.parametrize("gated", [False, True])
def test_no_number_of_rows_needs_more_scratch_than_was_reserved(
    scheme: QuantScheme | None, gated: bool
) -> None:
    device, at = torch.device("cpu"), (9, 0)
    for n, k in ((64, 2048), (300, 1100)):
        shape = Shape(n, k, 1500, gated)
        matrix = make_matrix(shape, "bfloat16", scheme, Workspace(device), torch.bfloat16)
        weights = matrix.weights
        kind = weights.kind(torch.bfloat16, gated)
        reserved = launch.scratch(weights, shape, torch.bfloat16, at)
        needs = []
        for rows in range(1, shape.max_rows + 1):
            tile = choose(kind, rows, n, weights.padded, at)
            needs.append(carved_bytes(*launch._parts(weights, kind, tile, rows, shape)))
        assert max(needs) == reserved


def test_bytes_are_known_without_memory() -> None:
    for scheme in (None, GridScheme(4, 32), GroupScheme(8, 64, True)):
        spaces = Workspace(torch.device("cpu")), Workspace(torch.device("meta"))
        real, planned = (
            make_matrix(Shape(300, 1100, 90), "bfloat16", scheme, space, torch.bfloat16)
            for space in spaces
        )
        assert planned.nbytes == real.nbytes > 300 * 1100 // 2
        assert spaces[0].nbytes == spaces[1].nbytes
