"""The points of E8P, and of the smaller codebook, that are nearest to vectors of 8 weights."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.quant.lattice import QUARTER, first_odd, magnitudes, small_points

F32 = NDArray[np.float32]

_CHUNK: Final = 1024
"""Vectors at a time, so that their distances from 256 points stay in cache."""
_SIGN_BITS: Final = np.array([256 << i for i in range(7)] + [0], np.uint16)


def nearest_codes(x: F32) -> NDArray[np.uint16]:
    """The codes ``[rows]`` of the points of E8P nearest to the rows of x ``[rows, 8]``.

    For the sake of either move and each of 256 vectors of magnitudes the best signs are those of
    what is left; where these are an odd number and should be even, or the other way about, the one
    that costs least is turned. So all 65,536 points are compared by 512 products.
    """
    codes = np.empty(len(x), np.uint16)
    for first in range(0, len(x), _CHUNK):
        some = x[first : first + _CHUNK]
        (up, near), (down, nearer) = _moved(some, QUARTER), _moved(some, -QUARTER)
        # What is moved has another length than x: 2 by * sum(x) is the difference.
        quarter = np.float32(2) * QUARTER * some.sum(axis=1)
        lower = nearer - quarter > near + quarter
        codes[first : first + _CHUNK] = np.where(lower, down | np.uint16(1 << 15), up)
    return codes


def _moved(x: F32, by: np.float32) -> tuple[NDArray[np.uint16], F32]:
    """Codes without a move of the points nearest to ``x - by``, and the squared length of that less
    their squared distance from it."""
    left = x - by
    sizes, negative = np.abs(left), left < 0
    odd = negative.sum(axis=1) % 2 == 1
    kind, scores = np.empty(len(x), np.intp), np.empty(len(x), np.float32)
    for rows in (np.flatnonzero(~odd), np.flatnonzero(odd)):
        if len(rows):
            own = _scores(sizes[rows], odd=bool(odd[rows[0]]))
            kind[rows] = best = own.argmax(axis=1)
            scores[rows] = own[np.arange(len(rows)), best]
    turned = np.flatnonzero((kind >= first_odd()) != odd)
    cheapest = (sizes[turned] * magnitudes()[kind[turned]]).argmin(axis=1)
    negative[turned, cheapest] ^= True
    signs = np.where(negative, _SIGN_BITS, np.uint16(0)).sum(axis=1, dtype=np.uint16)
    return kind.astype(np.uint16) | signs, scores


def _scores(sizes: F32, odd: bool) -> F32:
    """How much nearer than 0 the best point of each of 256 magnitudes is, ``[rows, 256]``, for
    vectors of these ``sizes`` ``[rows, 8]`` with an ``odd`` number of negative components."""
    table = magnitudes()
    scores = sizes @ (table.T * np.float32(2))
    scores -= np.square(table).sum(axis=1)
    others = slice(None, first_odd()) if odd else slice(first_odd(), None)
    doubled = table[others] * np.float32(4)
    least = sizes[:, :1] * doubled[:, 0]
    term = np.empty_like(least)
    for i in range(1, table.shape[1]):
        np.minimum(least, np.multiply(sizes[:, i : i + 1], doubled[:, i], out=term), out=least)
    scores[:, others] -= least
    return scores


def nearest_small(x: F32) -> NDArray[np.uint8]:
    """The codes ``[rows]`` of the points of the smaller codebook nearest to the rows of x
    ``[rows, 8]``."""
    table = small_points()
    codes = np.empty(len(x), np.uint8)
    for first in range(0, len(x), _CHUNK):
        scores = x[first : first + _CHUNK] @ (table.T * np.float32(2))
        scores -= np.square(table).sum(axis=1)
        codes[first : first + _CHUNK] = scores.argmax(axis=1)
    return codes
