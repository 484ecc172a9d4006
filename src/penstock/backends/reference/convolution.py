"""Convolutions along sequences whose earlier inputs are cached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.backends.reference.cache import RowStore
from penstock.backends.reference.fused import fma
from penstock.backends.reference.products import F32
from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.step import KvTables, StepInput


def convolve(
    x: F32, weight: F32, bias: F32 | None, store: RowStore, tables: KvTables, step: StepInput
) -> F32:
    """What ``plan.ops.ShortConv`` makes of x ``[T, c]``, which is then kept in ``store``."""
    x, out = store.rounded(x), np.empty_like(x)
    before = weight.shape[1] - 1
    for s in range(step.num_sequences):
        first, end = int(step.query_starts[s]), int(step.query_starts[s + 1])
        start = int(step.context_lens[s]) - (end - first)
        blocks = tables.block_ids[tables.block_starts[s] : tables.block_starts[s + 1]]
        places = np.arange(max(start - before, 0), start)
        cached = store.read(blocks[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE)
        parents = step.tree_parents[first:end] if len(step.tree_parents) else None
        for row in range(end - first):
            line = _line(row, parents, before)
            known = max(len(cached) - (before + 1 - len(line)), 0)
            seen = [*cached[known:], *x[first:end][line]]
            out[first + row] = weighted(seen, weight, bias)
    store.write(tables.slots, x)
    return out


def _line(row: int, parents: NDArray[np.int32] | None, before: int) -> list[int]:
    """The row and the rows of its sequence that precede it, ascending: at most ``before``."""
    line: list[int] = []
    while row >= 0 and len(line) <= before:
        line.append(row)
        row = row - 1 if parents is None else int(parents[row])
    return line[::-1]


def weighted(seen: Sequence[F32], weight: F32, bias: F32 | None) -> F32:
    """Return the sum over the taps, weight ``[c, kernel]``: from bias ``[c]`` or 0, one fused
    multiply-add for each in ascending order.

    ``seen`` has what each tap is for, ``[..., c]``; where there is less than taps, the first ones
    are for zeros.
    """
    total = np.zeros(len(weight), np.float32) if bias is None else bias
    lacking = weight.shape[1] - len(seen)
    for row, taps in zip([np.zeros_like(seen[0])] * lacking + [*seen], weight.T, strict=True):
        total = fma(taps, row, total)
    return total
