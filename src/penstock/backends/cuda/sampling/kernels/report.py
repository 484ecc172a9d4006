"""Kernels that report a token's rank, its row's sum of weights, and the largest logits.

Each chunk of a row finds its own largest, one after the other, in registers; one program a row
finds the largest of these. ``sampling/logprobs.py`` makes log-probabilities of them, in float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.sampling.kernels.row import ROW, WIDTH, key_of, weights_of

# Columns of a report, int64; then the largest.
RANK = tl.constexpr(0)
TOTAL = tl.constexpr(1)
LOGIT = tl.constexpr(2)
"""The token's, and ``PEAK`` the row's largest, as bits of float32."""
PEAK = tl.constexpr(3)
TOP = tl.constexpr(4)
"""The key of a logit, times 2**32, plus ``2**32 - 1`` less its id: the larger, the likelier."""

_INFINITY = tl.constexpr(float("inf"))
LEAST = tl.constexpr(-(2**63))
"""The value in place of a token that the vocabulary does not have."""
_LAST_ID = tl.constexpr(2**32 - 1)


@triton.jit
def _write_largest(ranked, out, count):
    """Write the ``count`` largest of ``ranked``, of which none but the least occurs twice."""
    for i in range(count):
        best = tl.max(ranked)
        tl.store(out + i, best)
        ranked = tl.where(ranked == best, LEAST, ranked)


@triton.jit(do_not_specialize=["first", "count"])
def report_chunk(
    jobs,
    order,
    first,
    errors,
    peaks,
    tokens,
    logits,
    stride,
    sums,
    ranks,
    tops,
    count,
    vocab,
    chunks,
    CHUNK: tl.constexpr,
    TOPS: tl.constexpr,
):
    """Compute what chunk ``c`` of the logits contributes to the report of job ``order[first + i]``.

    Writes ``sums``, the sum of its weights at temperature 1, int64 ``[rows, chunks]``; ``ranks``,
    how many of its tokens come before the chosen one, int32 ``[rows, chunks]``; and ``tops``, its
    ``count`` largest, int64 ``[rows, chunks, TOPS]``.
    """
    slot = tl.program_id(0)
    chunk = tl.program_id(1)
    job = tl.load(order + first + slot)
    if tl.load(errors + job) != 0:
        return
    row = logits + tl.load(jobs + job * WIDTH + ROW) * stride
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    there = ids < vocab
    x = tl.load(row + ids, there, other=-_INFINITY)
    token = tl.load(tokens + job)
    chosen = tl.load(row + token)
    before = (x > chosen) | ((x == chosen) & (ids < token))
    at = slot * chunks + chunk
    tl.store(sums + at, tl.sum(weights_of(x, tl.load(peaks + job), 1.0).to(tl.int64)))
    tl.store(ranks + at, tl.sum(before.to(tl.int32)))
    ranked = (key_of(x).to(tl.int64) << 32) + (_LAST_ID - ids.to(tl.int64))
    _write_largest(tl.where(there, ranked, LEAST), tops + at * TOPS, count)


@triton.jit(do_not_specialize=["first", "count"])
def report_row(
    jobs,
    order,
    first,
    errors,
    peaks,
    tokens,
    logits,
    stride,
    sums,
    ranks,
    tops,
    reports,
    count,
    chunks,
    CHUNKS: tl.constexpr,
    TOPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Put a row's chunks together in ``reports`` int64 ``[rows, COLUMNS]``.

    A job whose row has an error gets none.
    """
    slot = tl.program_id(0)
    job = tl.load(order + first + slot)
    if tl.load(errors + job) != 0:
        return
    chunk = tl.arange(0, CHUNKS)
    at = slot * chunks + chunk
    report = reports + slot * COLUMNS
    before = tl.sum(tl.load(ranks + at, chunk < chunks, other=0))
    tl.store(report + RANK, before.to(tl.int64) + 1)
    tl.store(report + TOTAL, tl.sum(tl.load(sums + at, chunk < chunks, other=0)))
    row = logits + tl.load(jobs + job * WIDTH + ROW) * stride
    chosen = tl.load(row + tl.load(tokens + job))
    tl.store(report + LOGIT, chosen.to(tl.int32, bitcast=True).to(tl.int64))
    peak = tl.load(peaks + job)
    tl.store(report + PEAK, peak.to(tl.int32, bitcast=True).to(tl.int64))
    entry = tl.arange(0, CHUNKS * TOPS)
    ranked = tl.load(
        tops + slot * chunks * TOPS + entry,
        (entry < chunks * TOPS) & (entry % TOPS < count),
        other=LEAST,
    )
    _write_largest(ranked, report + TOP, count)
