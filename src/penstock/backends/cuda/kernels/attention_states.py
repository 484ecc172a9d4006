"""States of a tile of attention in scratch: one split leaves its own, the last one joins all."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.attention_tile import join


@triton.jit
def leave_state(
    partial_sums,
    partial_weights,
    counter,
    first,
    parts,
    peak,
    weight,
    sums,
    rows,
    HEAD_DIM: tl.constexpr,
):
    """Store the first ``rows`` rows of a state from scratch row ``first`` on, and count it off.

    Returns whether all of the tile's ``parts`` are there.
    """
    folded = tl.arange(0, sums.shape[0])
    column = tl.arange(0, sums.shape[1])
    used = folded < rows
    place = first + folded
    tl.store(partial_weights + place * 2, peak, mask=used)
    tl.store(partial_weights + place * 2 + 1, weight, mask=used)
    cells = place.to(tl.int64)[:, None] * HEAD_DIM + column[None, :]
    tl.store(partial_sums + cells, sums, mask=used[:, None] & (column < HEAD_DIM)[None, :])
    tl.debug_barrier()  # every thread has stored before one of them counts
    return tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == parts - 1


@triton.jit
def join_states(
    partial_sums,
    partial_weights,
    first,
    parts,
    rows,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Return the state of all that a tile's ``parts`` have seen, in the order of splits."""
    tl.debug_barrier()  # no thread reads before the one that counted has its answer
    folded = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    used = folded < rows
    inside = used[:, None] & (column < HEAD_DIM)[None, :]
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for part in tl.range(0, parts, num_stages=2):
        place = first + part * rows + folded
        cells = place.to(tl.int64)[:, None] * HEAD_DIM + column[None, :]
        pair = partial_weights + place * 2
        other_peak = tl.load(pair, mask=used, other=0.0, cache_modifier=".cg")
        other_weight = tl.load(pair + 1, mask=used, other=1.0, cache_modifier=".cg")
        other_sums = tl.load(partial_sums + cells, mask=inside, other=0.0, cache_modifier=".cg")
        peak, weight, sums = join(peak, weight, sums, other_peak, other_weight, other_sums)
    return peak, weight, sums
