"""Choosing one token from a row of logits: weights, top-k, top-p, min-p, and the draw.

Probabilities are held as integers, ``floor(2**40 * exp((x - max) / temperature))``. Integer sums
do not depend on their order, so shortcuts (blocked sums, candidates instead of a full sort) give
exactly the result of the definition, and a row's outcome cannot depend on how it was computed.
A token 2**40 times less likely than the likeliest has weight zero and is never drawn; over a
vocabulary of 2**17 this removes less than 2**-23 of the probability. Sums stay below 2**63 for
vocabularies of up to 2**22 tokens.

Wherever likelihoods tie, the lower token id comes first.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from penstock.sampling.draws import below

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

ONE = 1 << 40
"""The weight of the likeliest token."""

_F = np.float32
_LOG2_E = _F(float.fromhex("0x1.715476p+0"))
_LN2_HIGH = _F(float.fromhex("0x1.62e4p-1"))
_LN2_LOW = _F(float.fromhex("0x1.7f7d1cp-20"))
_TAYLOR = tuple(_F(1.0 / math.factorial(k)) for k in range(7, -1, -1))

_BLOCK = 512  # weights per partial sum: two short passes instead of a prefix sum over the row
_COLUMNS = 64  # row elements per group maximum in top_ids
_TOP_P_STEPS = (ONE >> 6, ONE >> 12)
"""Least weights of what top-p tries before it sorts the row; language models mostly stop at the
first. Sorting 2**17 integers takes 0.8 ms, and selecting without a sort was measured slower."""


def token_weights(logits: Floats, peak: np.float32, inverse_temperature: np.float32) -> Ints:
    """Integer weights [n] of ``logits`` [n], whose maximum (in the whole row) is ``peak``.

    Changes ``logits``, which is used as scratch memory. The exponential is float32 and made of
    additions and multiplications alone, so that it is the same number on every machine:
    x = n ln 2 + r with |r| <= ln(2)/2, ln 2 in two parts of which the first times n is exact,
    and e^r by its Taylor series to r^7. Below -30 the weight is zero in any case.
    """
    x = np.maximum((logits - peak) * inverse_temperature, _F(-30.0), out=logits)
    n = np.rint(x * _LOG2_E)
    r = x - n * _LN2_HIGH
    r -= n * _LN2_LOW
    power = np.full_like(r, _TAYLOR[0])
    for term in _TAYLOR[1:]:
        power *= r
        power += term
    scaled: Floats = np.ldexp(power, n.astype(np.int32) + ONE.bit_length() - 1)
    return scaled.astype(np.int64)


def top_ids(logits: Floats, count: int) -> Ints:
    """Ids of the ``count`` largest of ``logits`` [n] (no NaN), largest first.

    The count-th largest of the maxima of disjoint groups is at most the count-th largest
    element; only what reaches it needs sorting.
    """
    size = len(logits)
    count = min(count, size)
    if count <= 0:
        return np.empty(0, np.int64)
    groups = size // _COLUMNS
    if count <= groups:
        maxima = logits[: groups * _COLUMNS].reshape(_COLUMNS, groups).max(axis=0)
        bound = np.partition(maxima, groups - count)[groups - count]
    else:
        bound = np.partition(logits, size - count)[size - count]
    candidates = np.flatnonzero(logits >= bound)
    order = np.argsort(-logits[candidates], kind="stable")
    return candidates[order[:count]]


def top_p_keep(weights: Ints, total: int, top_p: float) -> Ints:
    """Positions, ascending, of the fewest largest ``weights`` that sum to ``top_p * total``.

    Only values are sorted, and of a peaked row only the large ones: the smallest kept value
    decides which positions stay.
    """
    target = min(max(math.ceil(top_p * total), 1), total)
    values = weights
    for least in _TOP_P_STEPS:
        large = weights[np.flatnonzero(weights >= least)]
        if int(large.sum()) >= target:
            values = large
            break
        if len(large) * 4 > len(weights):
            break
    descending = np.sort(values)[::-1]
    last = int(np.searchsorted(np.cumsum(descending), target))
    cutoff = descending[last]
    kept = np.flatnonzero(weights >= cutoff)
    excess = len(kept) - (last + 1)
    if excess:
        ties = np.flatnonzero(weights[kept] == cutoff)
        kept = np.delete(kept, ties[len(ties) - excess :])
    return kept


def pick(weights: Ints, bits: int) -> int:
    """The position that a uniform 64-bit ``bits`` chooses with probability ``weights / sum``.

    It is the first whose running sum exceeds ``bits * sum / 2**64``. At least one weight is
    positive.
    """
    blocks = len(weights) // _BLOCK
    if blocks < 2:
        running = np.cumsum(weights)
        return int(np.searchsorted(running, below(int(running[-1]), bits), side="right"))
    split = blocks * _BLOCK
    sums = weights[:split].reshape(blocks, _BLOCK).sum(axis=1)
    rest = int(weights[split:].sum())
    running = np.cumsum(sums)
    at = below(int(running[-1]) + rest, bits)
    block = int(np.searchsorted(running, at, side="right"))
    if block:
        at -= int(running[block - 1])
    first = block * _BLOCK
    inside = np.cumsum(weights[first : first + _BLOCK] if block < blocks else weights[split:])
    return first + int(np.searchsorted(inside, at, side="right"))


def draw_token(
    logits: Floats,
    peak: np.float32,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    bits: int,
) -> int:
    """Sample a token id from ``logits`` [vocab] (their maximum ``peak`` is finite, none is NaN).

    ``bits`` is uniform. Overwrites ``logits``.
    """
    ids, weights = kept_weights(
        logits, peak, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    chosen = pick(weights, bits)
    return chosen if ids is None else int(ids[chosen])


def kept_weights(
    logits: Floats,
    peak: np.float32,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> tuple[Ints | None, Ints]:
    """Ids of the tokens that can still be chosen (None: all), ascending, and their weights.

    Filters act in the order top-k, top-p over what top-k left, min-p. ``temperature`` is
    positive; below the smallest normal float32 it acts as that number. Overwrites ``logits``.
    """
    inverse = np.float32(1.0 / max(temperature, float(np.finfo(np.float32).tiny)))
    ids: Ints | None = None
    if 0 < top_k < len(logits):
        ids = np.sort(top_ids(logits, top_k))
        logits = logits[ids]
    weights = token_weights(logits, peak, inverse)
    if top_p < 1.0:
        kept = top_p_keep(weights, int(weights.sum()), top_p)
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    if min_p > 0.0:
        # In a full row, zeroing is cheaper than collecting what stays.
        np.multiply(weights, weights >= math.ceil(min_p * ONE), out=weights)
    return ids, weights
