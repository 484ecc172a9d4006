"""Kernels that choose a token: those that every job needs, and draws from the whole vocabulary.

What changes from launch to launch is never specialized for: a step must not wait for a compiler.
A program takes a chunk of a row: ``CHUNK`` logits in registers. Sums of a chunk's integer weights
go to scratch memory, and one program a row draws from them: it finds the chunk, and computes the
weights of that one again. A row of 2**17 is read once (512 KiB) and 64 of them, 32 MiB, about 10 us
at an H100's bandwidth; the exponential is about 40 instructions a logit, which takes as long
again over all its multiprocessors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.sampling.kernels.row import (
    BITS,
    COUNTS,
    FREQUENCY,
    INFINITE,
    INVERSE_TEMPERATURE,
    LEAST,
    LISTS,
    MASK,
    NO_TOKEN_LEFT,
    NOT_A_NUMBER,
    NUM_BIASES,
    NUM_ENDING,
    ONLY_NEGATIVE_INFINITE,
    PLACE,
    PRESENCE,
    REPETITION,
    ROW,
    WIDTH,
    below,
    logits_of,
    option_of,
    weights_of,
)

_INFINITY = tl.constexpr(float("inf"))


@triton.jit(do_not_specialize=["num_jobs"])
def begin(
    jobs,
    num_jobs,
    logits,
    stride,
    argmax,
    tokens,
    errors,
    model_peaks,
    peaks,
    BLOCK: tl.constexpr,
):
    """Take each job's token from the arg max of its row, and find what is wrong with the row.

    A greedy job needs no more. The arg max of a row with a NaN is a NaN.
    """
    job = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = job < num_jobs
    row = tl.load(jobs + job * WIDTH + ROW, there, other=0)
    token = tl.load(argmax + row, there, other=0)
    peak = tl.load(logits + row * stride + token, there, other=0.0)
    error = tl.where(peak == _INFINITY, INFINITE, 0)
    error = tl.where(peak == -_INFINITY, ONLY_NEGATIVE_INFINITE, error)
    error = tl.where(peak != peak, NOT_A_NUMBER, error)
    tl.store(tokens + job, tl.where(error == 0, token, 0), there)
    tl.store(errors + job, error, there)
    tl.store(model_peaks + job, peak, there)
    tl.store(peaks + job, peak, there)  # until options change the row


@triton.jit
def _listed(tokens, count, end, TILE: tl.constexpr):
    """Return how many of ``count`` ascending tokens are below ``end``."""
    found = tl.full((), 0, tl.int32)
    for start in range(0, count, TILE):
        at = start + tl.arange(0, TILE)
        token = tl.load(tokens + at, at < count, other=0x7FFFFFFF)
        found += tl.sum((token < end).to(tl.int32))
    return found


@triton.jit(do_not_specialize=["first"])
def adjust(
    jobs,
    order,
    first,
    errors,
    logits,
    stride,
    adjusted,
    adjusted_stride,
    maxima,
    winners,
    vocab,
    chunks,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write rows with logit bias, minimum length, penalties and grammar applied to ``adjusted``.

    Program ``(i, c)`` takes chunk ``c`` for the job ``order[first + i]``. Each chunk's largest
    logit and its token go to ``maxima`` float32 and ``winners`` int32 ``[rows, chunks]``; a chunk
    with a NaN has it as its largest.
    """
    slot = tl.program_id(0)
    chunk = tl.program_id(1)
    job = tl.load(order + first + slot)
    if tl.load(errors + job) != 0:
        return
    record = jobs + job * WIDTH
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    there = ids < vocab
    x = tl.load(logits + tl.load(record + ROW) * stride + ids, there, other=-_INFINITY)
    biased = tl.load(record + LISTS).to(tl.pointer_type(tl.int32))
    num_biases = tl.load(record + NUM_BIASES).to(tl.int32)
    biases = (biased + num_biases).to(tl.pointer_type(tl.float32), bitcast=True)
    low = _listed(biased, num_biases, chunk * CHUNK, TILE)
    high = _listed(biased, num_biases, (chunk + 1) * CHUNK, TILE)
    for i in range(low, high):
        x = tl.where(ids == tl.load(biased + i), x + tl.load(biases + i), x)
    ending = biased + 2 * num_biases
    num_ending = tl.load(record + NUM_ENDING).to(tl.int32)
    low = _listed(ending, num_ending, chunk * CHUNK, TILE)
    high = _listed(ending, num_ending, (chunk + 1) * CHUNK, TILE)
    for i in range(low, high):
        x = tl.where(ids == tl.load(ending + i), -_INFINITY, x)
    counts = tl.load(record + COUNTS)
    if counts != 0:
        seen = tl.load(counts.to(tl.pointer_type(tl.int32)) + ids, there, other=0)
        repetition = option_of(jobs, job, REPETITION).to(tl.float32)
        # An approximate quotient would not be NumPy's.
        quotient = tl.div_rn(x, tl.zeros([CHUNK], tl.float32) + repetition)
        x = tl.where(seen != 0, tl.where(x > 0, quotient, x * repetition), x)
        occurrences = (seen >> 1).to(tl.float32)
        taken = option_of(jobs, job, FREQUENCY).to(tl.float32) * occurrences
        taken += option_of(jobs, job, PRESENCE).to(tl.float32)
        x = tl.where(seen > 1, x - taken, x)
    mask = tl.load(record + MASK)
    if mask != 0:
        words = tl.load(mask.to(tl.pointer_type(tl.int32)) + (ids >> 5), there, other=0)
        x = tl.where(((words >> (ids & 31)) & 1) != 0, x, -_INFINITY)
    tl.store(adjusted + slot.to(tl.int64) * adjusted_stride + ids, x, there)
    bad = tl.max(((x != x) & there).to(tl.int32))
    largest = tl.max(tl.where(x != x, -_INFINITY, x))
    winner = tl.min(tl.where((x == largest) & there, ids, vocab))
    largest = tl.where(bad != 0, float("nan"), largest)
    tl.store(maxima + slot * chunks + chunk, largest)
    tl.store(winners + slot * chunks + chunk, winner)


@triton.jit(do_not_specialize=["first"])
def take_largest(
    order, first, errors, maxima, winners, tokens, peaks, vocab, chunks, CHUNKS: tl.constexpr
):
    """Take each job's token from the largest of its adjusted row, or note that none is left."""
    slot = tl.program_id(0)
    job = tl.load(order + first + slot)
    if tl.load(errors + job) != 0:
        return
    chunk = tl.arange(0, CHUNKS)
    there = chunk < chunks
    largest = tl.load(maxima + slot * chunks + chunk, there, other=-_INFINITY)
    winner = tl.load(winners + slot * chunks + chunk, there, other=0)
    bad = tl.max((largest != largest).to(tl.int32)) != 0
    peak = tl.max(tl.where(largest != largest, -_INFINITY, largest))
    bad = bad | (peak == _INFINITY) | (peak == -_INFINITY)
    token = tl.min(tl.where((largest == peak) & there, winner, vocab))
    tl.store(tokens + job, tl.where(bad, 0, token))
    tl.store(errors + job, tl.where(bad, NO_TOKEN_LEFT, 0))
    tl.store(peaks + job, peak)


@triton.jit
def _weigh_chunk(jobs, job, peak, chunk, vocab, CHUNK: tl.constexpr, ALIGNED: tl.constexpr):
    """Return a chunk's weights, int64 ``[CHUNK]``; those that min-p drops are zero."""
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    logits = logits_of(jobs, job, ALIGNED)
    inverse = option_of(jobs, job, INVERSE_TEMPERATURE).to(tl.float32)
    x = tl.load(logits + ids, ids < vocab, other=-_INFINITY)
    weights = weights_of(x, peak, inverse).to(tl.int64)
    return tl.where(weights >= tl.load(jobs + job * WIDTH + LEAST), weights, 0)


@triton.jit(do_not_specialize=["first"])
def weigh(
    jobs,
    order,
    first,
    errors,
    peaks,
    sums,
    vocab,
    chunks,
    CHUNK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Sum the weights of each chunk into ``sums`` int64 ``[rows, chunks]``."""
    slot = tl.program_id(0)
    chunk = tl.program_id(1)
    job = tl.load(order + first + slot)
    if tl.load(errors + job) != 0:
        return
    peak = tl.load(peaks + job)
    weights = _weigh_chunk(jobs, job, peak, chunk, vocab, CHUNK, ALIGNED)
    tl.store(sums + slot * chunks + chunk, tl.sum(weights))


@triton.jit(do_not_specialize=["first"])
def pick(
    jobs,
    order,
    first,
    errors,
    peaks,
    sums,
    tokens,
    vocab,
    chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Choose the first token whose running sum of weights exceeds the draw."""
    slot = tl.program_id(0)
    job = tl.load(order + first + slot)
    if tl.load(errors + job) != 0:
        return
    ids = tl.arange(0, CHUNKS)
    parts = tl.load(sums + slot * chunks + ids, ids < chunks, other=0)
    at = below(tl.load(jobs + job * WIDTH + BITS), tl.sum(parts))
    running = tl.cumsum(parts)
    passed = running <= at
    chunk = tl.sum(passed.to(tl.int32))
    at -= tl.max(tl.where(passed, running, 0))
    peak = tl.load(peaks + job)
    running = tl.cumsum(_weigh_chunk(jobs, job, peak, chunk, vocab, CHUNK, ALIGNED))
    tl.store(tokens + job, chunk * CHUNK + tl.sum((running <= at).to(tl.int32)))


@triton.jit(do_not_specialize=["first", "num_jobs"])
def count_tokens(jobs, order, first, errors, num_jobs, tokens, BLOCK: tl.constexpr):
    """Add the chosen tokens to the counts of their sequences, each of which occurs once, and take
    away those that leave the last tokens for them."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < num_jobs
    job = tl.load(order + first + at, there, other=0)
    token = tl.load(tokens + job, there, other=0)
    there = there & (tl.load(errors + job, there, other=1) == 0)
    counts = tl.load(jobs + job * WIDTH + COUNTS, there, other=0).to(tl.pointer_type(tl.int32))
    kept = tl.load(jobs + job * WIDTH + PLACE, there, other=0)
    keeps = there & (kept != 0)
    kept = kept.to(tl.pointer_type(tl.int32))
    leaving = tl.load(kept, keeps, other=-1)
    tl.store(kept, token, keeps)
    changes = there & (leaving != token)
    leaves = changes & (leaving >= 0)
    tl.store(counts + leaving, tl.load(counts + leaving, leaves, other=0) - 2, leaves)
    tl.store(counts + token, tl.load(counts + token, changes, other=0) + 2, changes)
