"""What is launched before the first request, so that no request waits for a compiler.

Triton compiles a kernel when it is first launched with new constants, types, or properties of its
arguments (addresses and sizes that 16 divides). What these may be depends on the plan alone but for
the tiles of products, which rows choose, and draft trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from penstock.backends.cuda.check import StepBounds
from penstock.backends.cuda.expert_matrix import ExpertMatrix
from penstock.backends.cuda.head_matrix import HeadMatrix
from penstock.backends.cuda.kernels.tiles import Tile, row_steps
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.matrix import Matrix
from penstock.backends.cuda.step import idle_step, idle_tree
from penstock.interface.adapters import NO_ADAPTER
from penstock.interface.step import StepInput

_FORK = 3
"""Rows of the smallest tree that branches."""


Tiled: TypeAlias = Matrix | HeadMatrix | ExpertMatrix
"""Whatever has tiles that a step's rows choose."""


def warm_rows(matrices: Iterable[Tiled], max_rows: int) -> tuple[int, ...]:
    """Rows of few products that between them use every tile that up to ``max_rows`` rows can.

    Each product takes as many of a step's rows as it may have.
    """
    alike = {_likeness(matrix): matrix for matrix in matrices}.values()
    used: dict[int, set[tuple[int, Tile, bool]]] = {}
    for rows in row_steps(max_rows):
        used[rows] = set()
        for i, matrix in enumerate(alike):
            own = min(rows, matrix.shape.max_rows)
            tile = matrix.tile(own)
            if tile is not None:
                # The experts of one token are not sorted, and those of others are.
                used[rows].add((i, tile, isinstance(matrix, ExpertMatrix) and own == 1))
    missing: set[tuple[int, Tile, bool]] = set().union(*used.values())
    chosen = [max_rows]  # also what depends on the rows' number beyond tiles, if anything does
    missing -= used[max_rows]
    while missing:
        rows = max(used, key=lambda n: (len(used[n] & missing), -n))
        missing -= used[rows]
        chosen.append(rows)
    return tuple(sorted(chosen))


def _likeness(matrix: Tiled) -> tuple[object, ...]:
    """What tiles depend on: the layers' matrices are mostly alike."""
    weights: Weights = matrix.weights
    form = (weights.format, weights.bits, weights.padded, weights.depth, weights.size)
    return (*form, weights.whole, weights.integers, matrix.shape)


def warm_steps(rows: Iterable[int], bounds: StepBounds, trees: bool) -> Iterator[StepInput]:
    """Steps that between them launch whatever steps can launch, and change nothing.

    ``rows``: of :func:`warm_rows`. One row comes first: what cannot be compiled is found soon.
    """
    adapters = np.array([NO_ADAPTER] if bounds.adapters else [], np.int32)
    for tokens in dict.fromkeys((1, *rows)):
        logits = min(tokens, bounds.max_logit_rows)
        step = idle_step(tokens, logits, bounds.feature_size, bounds.groups)
        yield replace(step, adapters=adapters)
    if trees and min(bounds.max_tokens, bounds.max_logit_rows) >= _FORK:
        yield idle_tree(bounds.feature_size, bounds.groups)
