"""Kernels that draw from the likeliest tokens alone: top-k and top-p, without sorting rows.

1. ``levels``: each chunk counts and sums what reaches a few thresholds (``LEVELS``).
2. ``gather``: so the lowest threshold that leaves enough is known, and the tokens that reach it are
   written densely and in order of id. Of a language model's rows they are a few hundred.
3. ``cut_top_k`` and ``choose``: one program a row finds the exact cutoff among these by bisecting
   the bits of float32 (keys), in at most 32 looks. Ties are counted in order: lower ids stay.

Counts and sums are integers, so all of it is exact in any order. Estimates for an H100, none of
them measured: steps 1 and 2 read a row of 2**17 twice, 64 rows 64 MiB, 20 us at the memory's rate
and less from L2; reducing for nine thresholds takes about 40 us. Step 3 holds 2048 candidates in
registers: about 0.3 us a look, 10 us in all. So 64 rows take less than 100 us, and 256 rows, in
batches of 64, less than 400. Where a row is so flat that nearly all of its tokens stay, a look
reads 512 KiB from L2 in about 6 us: 150 us more a batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.sampling.kernels.row import (
    BITS,
    INVERSE_TEMPERATURE,
    LEAST,
    MOST_KEY,
    ONE_KEY,
    TOP_K,
    TOP_P,
    WIDTH,
    below,
    key_of,
    logits_of,
    nucleus,
    option_of,
    weight_of_key,
    weights_of,
)

BELOW_PEAK = (1.0, 2.0, 4.0, 6.0, 9.0, 13.0, 20.0, 40.0, float("inf"))
"""Thresholds of top-k: logits that are at most this much below the row's largest."""
WEIGHTS = tuple(2.0**bits for bits in (37, 34, 31, 28, 25, 22, 19, 16, 0))
"""Thresholds of top-p; language models mostly stop at the first three."""
LEVELS = tl.constexpr(len(WEIGHTS))
_LEVELS_BLOCK = tl.constexpr(16)

# Columns of a row's bracket, int64: where the cutoff is looked for.
BRACKET = tl.constexpr(8)
_SIZE = tl.constexpr(0)
"""Candidates."""
_LOW = tl.constexpr(1)
"""A key that the cutoff is at least."""
_HIGH = tl.constexpr(2)
"""A key that it is below."""
_ABOVE = tl.constexpr(3)
"""What candidates of at least the high key amount to."""
_TARGET = tl.constexpr(4)
"""What those of at least the cutoff must amount to."""
_TOTAL = tl.constexpr(5)
"""The sum of the weights that top-k leaves."""

_INFINITY = tl.constexpr(float("inf"))
_LEAST_KEY = tl.constexpr(-(2**31))


@triton.jit
def _row_chunk(jobs, job, peaks, chunk, vocab, CHUNK: tl.constexpr, ALIGNED: tl.constexpr):
    """Return a chunk's ids, logits, weights (whole float32), and what thresholds apply to."""
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    logits = logits_of(jobs, job, ALIGNED)
    x = tl.load(logits + ids, ids < vocab, other=-_INFINITY)
    inverse = option_of(jobs, job, INVERSE_TEMPERATURE).to(tl.float32)
    weights = weights_of(x, tl.load(peaks + job), inverse)
    by_rank = tl.load(jobs + job * WIDTH + TOP_K) > 0
    return ids, x, weights, tl.where(by_rank, x, weights)


@triton.jit
def _threshold(jobs, job, peaks, thresholds, level):
    by_rank = tl.load(jobs + job * WIDTH + TOP_K) > 0
    logit = tl.load(peaks + job) - tl.load(thresholds + level)
    return tl.where(by_rank, logit, tl.load(thresholds + LEVELS + level))


@triton.jit(do_not_specialize=["first"])
def levels(
    jobs,
    order,
    first,
    errors,
    peaks,
    thresholds,
    hits,
    sums,
    vocab,
    chunks,
    CHUNK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Count, for each threshold, the tokens of a chunk that reach it, and sum their weights.

    ``thresholds`` float32 ``[2, LEVELS]``: ``BELOW_PEAK`` and ``WEIGHTS``. ``hits`` int32 and
    ``sums`` int64 are ``[rows, LEVELS, chunks]``.
    """
    slot = tl.program_id(0)
    chunk = tl.program_id(1)
    job = tl.load(order + first + slot)
    if tl.load(errors + job) != 0:
        return
    ids, _, weights, score = _row_chunk(jobs, job, peaks, chunk, vocab, CHUNK, ALIGNED)
    whole = weights.to(tl.int64)
    for level in range(LEVELS):
        reach = (score >= _threshold(jobs, job, peaks, thresholds, level)) & (ids < vocab)
        at = (slot * LEVELS + level) * chunks + chunk
        tl.store(hits + at, tl.sum(reach.to(tl.int32)))
        tl.store(sums + at, tl.sum(tl.where(reach, whole, 0)))


@triton.jit(do_not_specialize=["first"])
def gather(
    jobs,
    order,
    first,
    errors,
    peaks,
    thresholds,
    hits,
    sums,
    brackets,
    candidates,
    weight_keys,
    logit_keys,
    vocab,
    stride,
    chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Write a row's candidates, in ascending order of id, and the bracket of its cutoff.

    ``candidates`` (ids), ``weight_keys`` and ``logit_keys`` are int32 ``[rows, stride]``,
    ``brackets`` int64 ``[rows, BRACKET]``. Logits' keys are only written where there is a top-k.
    """
    slot = tl.program_id(0)
    chunk = tl.program_id(1)
    job = tl.load(order + first + slot)
    if tl.load(errors + job) != 0:
        return
    level_ids = tl.arange(0, _LEVELS_BLOCK)
    chunk_ids = tl.arange(0, CHUNKS)
    at = (slot * LEVELS + level_ids)[:, None] * chunks + chunk_ids[None, :]
    there = (level_ids < LEVELS)[:, None] & (chunk_ids < chunks)[None, :]
    hit = tl.load(hits + at, there, other=0)
    counts = tl.sum(hit, 1)
    amounts = tl.sum(tl.load(sums + at, there, other=0), 1)
    total = tl.max(amounts)  # at the last level, of all
    top_k = tl.load(jobs + job * WIDTH + TOP_K)
    by_rank = top_k > 0
    measure = tl.where(by_rank, counts.to(tl.int64), amounts)
    target = nucleus(total, option_of(jobs, job, TOP_P))
    target = tl.where(by_rank, top_k, target)
    level = tl.sum(((measure < target) & (level_ids < LEVELS)).to(tl.int32))
    here = level_ids == level
    start = tl.sum(tl.sum(tl.where(here[:, None] & (chunk_ids < chunk)[None, :], hit, 0), 1))

    ids, x, weights, score = _row_chunk(jobs, job, peaks, chunk, vocab, CHUNK, ALIGNED)
    reach = (score >= _threshold(jobs, job, peaks, thresholds, level)) & (ids < vocab)
    place = slot.to(tl.int64) * stride + start + tl.cumsum(reach.to(tl.int32)) - 1
    tl.store(candidates + place, ids, reach)
    tl.store(weight_keys + place, key_of(weights), reach)
    if by_rank:
        tl.store(logit_keys + place, key_of(x), reach)
    if chunk == 0:
        low = key_of(_threshold(jobs, job, peaks, thresholds, level))
        high = tl.where(by_rank, key_of(tl.load(peaks + job)), MOST_KEY) + 1
        if level > 0:
            high = key_of(_threshold(jobs, job, peaks, thresholds, level - 1))
        bracket = brackets + slot * BRACKET
        tl.store(bracket + _SIZE, tl.sum(tl.where(here, counts, 0)).to(tl.int64))
        tl.store(bracket + _LOW, low.to(tl.int64))
        tl.store(bracket + _HIGH, high.to(tl.int64))
        tl.store(bracket + _ABOVE, tl.max(tl.where(level_ids < level, measure, 0)))
        tl.store(bracket + _TARGET, target)
        tl.store(bracket + _TOTAL, total)


@triton.jit
def _amount(keys, least, WEIGHTED: tl.constexpr):
    """Return what keys of at least ``least`` amount to: the sum of their weights, or their
    number."""
    if WEIGHTED:
        amount = tl.sum(tl.where(keys >= least, weight_of_key(keys), 0))
    else:
        amount = tl.sum((keys >= least).to(tl.int32)).to(tl.int64)
    return amount


@triton.jit
def _find_cutoff(keys, size, low, high, above, target, WEIGHTED: tl.constexpr, TILE: tl.constexpr):
    """Return the largest key such that keys of at least it amount to ``target``, and what keys
    above it amount to.

    Keys of at least ``low`` reach the target; those of at least ``high`` amount to ``above``, which
    does not.
    """
    at = tl.arange(0, TILE)
    in_registers = tl.load(keys + at, at < size, other=_LEAST_KEY)
    while high - low > 1:
        middle = low + (high - low) // 2
        least = middle.to(tl.int32)
        amount = _amount(in_registers, least, WEIGHTED)
        for start in range(TILE, size, TILE):
            rest = tl.load(keys + start + at, start + at < size, other=_LEAST_KEY)
            amount += _amount(rest, least, WEIGHTED)
        if amount >= target:
            low = middle
        else:
            high = middle
            above = amount
    return low.to(tl.int32), above


@triton.jit(do_not_specialize=["first"])
def cut_top_k(order, first, errors, brackets, weight_keys, logit_keys, stride, TILE: tl.constexpr):
    """Set the weights of candidates beyond the k largest to zero, and sum the others."""
    slot = tl.program_id(0).to(tl.int64)
    job = tl.load(order + first + slot)
    if tl.load(errors + job) != 0:
        return
    bracket = brackets + slot * BRACKET
    size = tl.load(bracket + _SIZE).to(tl.int32)
    target = tl.load(bracket + _TARGET)
    logit_row = logit_keys + slot * stride
    weight_row = weight_keys + slot * stride
    cutoff, above = _find_cutoff(
        logit_row,
        size,
        tl.load(bracket + _LOW),
        tl.load(bracket + _HIGH),
        tl.load(bracket + _ABOVE),
        target,
        False,
        TILE,
    )
    ties = (target - above).to(tl.int32)
    total = tl.full((), 0, tl.int64)
    seen = tl.full((), 0, tl.int32)
    for start in range(0, size, TILE):
        at = start + tl.arange(0, TILE)
        keys = tl.load(logit_row + at, at < size, other=_LEAST_KEY)
        same = ((keys == cutoff) & (at < size)).to(tl.int32)
        kept = (keys > cutoff) | ((same != 0) & (seen + tl.cumsum(same) <= ties))
        weights = tl.load(weight_row + at, at < size, other=0)
        tl.store(weight_row + at, tl.where(kept, weights, 0), at < size)
        total += tl.sum(tl.where(kept, weight_of_key(weights), 0))
        seen += tl.sum(same)
    tl.store(bracket + _TOTAL, total)


@triton.jit(do_not_specialize=["first"])
def choose(
    jobs,
    order,
    first,
    errors,
    brackets,
    candidates,
    weight_keys,
    tokens,
    stride,
    TILE: tl.constexpr,
):
    """Apply top-p and min-p to a row's candidates, and draw from what they leave."""
    slot = tl.program_id(0).to(tl.int64)
    job = tl.load(order + first + slot)
    if tl.load(errors + job) != 0:
        return
    bracket = brackets + slot * BRACKET
    size = tl.load(bracket + _SIZE).to(tl.int32)
    keys = weight_keys + slot * stride
    cutoff = tl.full((), 1, tl.int64)
    ties = size.to(tl.int64)
    top_p = option_of(jobs, job, TOP_P)
    if top_p < 1.0:
        low = tl.load(bracket + _LOW)
        high = tl.load(bracket + _HIGH)
        above = tl.load(bracket + _ABOVE)
        target = tl.load(bracket + _TARGET)
        if tl.load(jobs + job * WIDTH + TOP_K) > 0:  # the bracket was that of top-k
            low = tl.full((), ONE_KEY, tl.int64)
            high = tl.full((), MOST_KEY + 1, tl.int64)
            above = tl.full((), 0, tl.int64)
            target = nucleus(tl.load(bracket + _TOTAL), top_p)
        key, above = _find_cutoff(keys, size, low, high, above, target, True, TILE)
        cutoff = weight_of_key(key)
        ties = (target - above + cutoff - 1) // cutoff
    least = tl.load(jobs + job * WIDTH + LEAST)
    if least > cutoff:
        cutoff = least
        ties = size.to(tl.int64)

    total = tl.full((), 0, tl.int64)
    equal = tl.full((), 0, tl.int64)
    for start in range(0, size, TILE):
        at = start + tl.arange(0, TILE)
        weights = weight_of_key(tl.load(keys + at, at < size, other=0))
        total += tl.sum(tl.where(weights > cutoff, weights, 0))
        equal += tl.sum((weights == cutoff).to(tl.int64))
    total += tl.minimum(equal, ties) * cutoff
    draw = below(tl.load(jobs + job * WIDTH + BITS), total)

    position = tl.full((), 0, tl.int32)
    running = tl.full((), 0, tl.int64)
    seen = tl.full((), 0, tl.int64)
    for start in range(0, size, TILE):
        at = start + tl.arange(0, TILE)
        weights = weight_of_key(tl.load(keys + at, at < size, other=0))
        same = (weights == cutoff).to(tl.int64)
        kept = (weights > cutoff) | ((same != 0) & (seen + tl.cumsum(same) <= ties))
        weights = tl.where(kept, weights, 0)
        passed = (running + tl.cumsum(weights) <= draw) & (at < size)
        position += tl.sum(passed.to(tl.int32))
        running += tl.sum(weights)
        seen += tl.sum(same)
    tl.store(tokens + job, tl.load(candidates + slot * stride + position))
