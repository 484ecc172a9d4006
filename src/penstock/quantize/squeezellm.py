"""SqueezeLLM: a codebook for each row, fitted to the weights that matter, and a few weights apart.

Kim et al., SqueezeLLM: Dense-and-Sparse Quantization, 2023 (arXiv 2306.07629). The values that
weights of a row may have are those with which their squared errors, each times how sensitive the
model is to that weight, are least: weighted k-means in one dimension. The largest weights, which
would draw values towards them, and those whose loss would matter most stay in floats.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.quantize.grid import F32

F64 = NDArray[np.float64]

OUTLIERS: Final = 0.0045
"""The part of weights that stays in floats by default, as in the paper:"""
_SENSITIVE: Final = 1 / 9
"""so much of it for being sensitive (0.05 of 0.45 %), the rest for being large."""
_ROUNDS: Final = 50
"""Rounds of k-means, at most."""
_PLACES: Final = 96
"""Places where a row's values may be cut before k-means begins."""
_ROWS: Final = 64
"""Rows whose runs are weighed at a time: some megabytes of losses."""
_CHUNK: Final = 1 << 21
"""Weights that are sorted at a time."""


@dataclass(frozen=True)
class CodebookRows:
    """A matrix ``[n, k]`` of codes of each row's codebook.

    codes uint8 ``[n, k]``; codebook float32 ``[n, values]``, ascending; outliers bool ``[n, k]``,
    and their values float32, row after row.
    """

    codes: NDArray[np.uint8]
    codebook: F32
    outliers: NDArray[np.bool_]
    values: F32

    def dequantize(self) -> F32:
        """What it stands for, ``[n, k]``."""
        matrix: F32 = np.take_along_axis(self.codebook, self.codes.astype(np.intp), axis=1)
        matrix[self.outliers] = self.values
        return matrix


def squeezed(
    matrix: F32, sensitivity: F32, bits: int, outliers: int, dtype: np.dtype[np.generic]
) -> CodebookRows:
    """Round ``matrix`` ``[n, k]`` to codebooks of ``2 ** bits`` values of type ``dtype``.

    ``sensitivity``, 0 or more, of each weight, broadcasts to ``[n, k]``: the loss is the sum of it
    times squared errors. ``outliers``: how many weights stay as they are.
    """
    n, k = matrix.shape
    apart = _apart(matrix, sensitivity, outliers)
    books = np.empty((n, 1 << bits), np.float32)
    codes = np.empty((n, k), np.uint8)
    rows = max(1, _CHUNK // k)
    for first in range(0, n, rows):
        some = slice(first, first + rows)
        own = np.broadcast_to(sensitivity, (n, k))[some]
        # Columns that nothing is known of count as little as any, and not nothing.
        least = own.mean(axis=1, keepdims=True, dtype=np.float64) * 1e-6
        weights = np.where(apart[some], 0.0, np.where(least > 0, own + least, 1.0))
        books[some] = means(matrix[some], weights, 1 << bits).astype(dtype).astype(np.float32)
        codes[some] = _nearest(matrix[some], books[some])
    values = matrix[apart].astype(dtype).astype(np.float32)
    codes[apart] = 0
    return CodebookRows(codes, books, apart, values)


def _apart(matrix: F32, sensitivity: F32, count: int) -> NDArray[np.bool_]:
    """The weights that stay in floats: those of the largest magnitude and, of the others, those
    that are the worst to lose, by ``sensitivity * w**2``."""
    sensitive = int(count * _SENSITIVE)
    apart = np.zeros(matrix.shape, np.bool_)
    for score, number in (
        (np.abs(matrix), count - sensitive),
        (np.square(matrix) * sensitivity, sensitive),
    ):
        flat = np.where(apart, np.float32(-1), score).reshape(-1)
        # The order of equals is that of their places, so that it is the same on every machine.
        bound = np.partition(flat, len(flat) - number)[len(flat) - number] if number else np.inf
        apart.reshape(-1)[flat > bound] = True
        missing = number - int((flat > bound).sum())
        apart.reshape(-1)[np.flatnonzero(flat == bound)[:missing]] = True
    return apart


def means(values: F32, weights: F64, count: int) -> F64:
    """``count`` values for each row of ``values`` ``[n, k]``, ascending, whose nearest have about
    the least squared error, times ``weights``.

    The best way to cut ascending values into runs, at some of the places between them, is found by
    dynamic programming (Wang and Song, Ckmeans.1d.dp, The R Journal 2011), and rounds of k-means
    move the cuts from there to any place.
    """
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1).astype(np.float64)
    sums = _Sums(ordered, np.take_along_axis(weights, order, axis=1))
    found = np.empty((len(values), count))
    for first in range(0, len(values), _ROWS):
        some = sums.rows(slice(first, first + _ROWS))
        found[first : first + _ROWS] = some.settled(some.centers(some.cut(count)))
    return found


class _Sums:
    """Rows of ascending values, and sums over any run of them."""

    def __init__(self, ordered: F64, weights: F64) -> None:
        self._values = ordered
        self._weights = _running(weights)
        self._firsts = _running(weights * ordered)
        self._seconds = _running(weights * ordered * ordered)

    def rows(self, some: slice) -> _Sums:
        """Those of some rows, as views."""
        taken = copy(self)
        taken._values = self._values[some]
        taken._weights, taken._firsts = self._weights[some], self._firsts[some]
        taken._seconds = self._seconds[some]
        return taken

    def _places(self) -> NDArray[np.intp]:
        """The places where values may be cut, ``[n, places]``, 0 and k among them: all, or half of
        them by equal shares of the weights and half evenly apart in value."""
        n, k = self._values.shape
        if k <= _PLACES:
            return np.broadcast_to(np.arange(k + 1), (n, k + 1))
        steps = np.arange(1, _PLACES // 2) / (_PLACES // 2)
        shares = _search(self._weights[:, 1:], self._weights[:, -1:] * steps)
        low, high = self._values[:, :1], self._values[:, -1:]
        evenly = _search(self._values, low + (high - low) * steps)
        ends = np.zeros((n, 1), np.intp), np.full((n, 1), k, np.intp)
        return np.sort(np.concatenate([*ends, shares, evenly], axis=1), axis=1)

    def cut(self, count: int) -> NDArray[np.intp]:
        """The ends of ``count`` runs, 0 first, ``[n, count + 1]``, with the least loss of all that
        end at some places."""
        places = self._places()
        weights, firsts, seconds = (
            np.take_along_axis(sums, places, axis=1)
            for sums in (self._weights, self._firsts, self._seconds)
        )
        mass = weights[:, None] - weights[:, :, None]  # of the run from place i to j: [n, i, j]
        losses = firsts[:, None] - firsts[:, :, None]
        losses *= -losses
        losses /= np.where(mass > 0, mass, 1.0)
        losses += seconds[:, None] - seconds[:, :, None]
        np.maximum(losses, 0.0, out=losses)
        losses[:, *np.tril_indices(losses.shape[1], -1)] = np.inf
        best = losses[:, 0]
        starts: list[NDArray[np.intp]] = []
        for _ in range(count - 1):
            totals = best[:, :, None] + losses
            starts.append(totals.argmin(axis=1))
            best = np.take_along_axis(totals, starts[-1][:, None], axis=1)[:, 0]
        at = np.full(len(places), places.shape[1] - 1)
        ends = [at]
        for start in starts[::-1]:
            at = start[np.arange(len(at)), at]
            ends.append(at)
        ends.append(np.zeros_like(at))
        return np.take_along_axis(places, np.stack(ends[::-1], axis=1), axis=1)

    def centers(self, ends: NDArray[np.intp], before: F64 | None = None) -> F64:
        """The mean of each run, ascending; of one without weight that of ``before``, or the value
        at its end."""
        weights, firsts = (
            np.diff(np.take_along_axis(sums, ends, axis=1), axis=1)
            for sums in (self._weights, self._firsts)
        )
        if before is None:
            last = self._values.shape[1] - 1
            before = np.take_along_axis(self._values, np.minimum(ends[:, 1:], last), axis=1)
        some = weights > 0
        return np.sort(np.where(some, firsts / np.where(some, weights, 1.0), before), axis=1)

    def settled(self, centers: F64) -> F64:
        """What rounds of k-means make of ``centers`` ``[n, count]``."""
        n, k = self._values.shape
        ends = np.zeros((n, centers.shape[1] + 1), np.intp)
        ends[:, -1] = k
        for _ in range(_ROUNDS):
            places = _search(self._values, (centers[:, 1:] + centers[:, :-1]) / 2)
            if np.array_equal(places, ends[:, 1:-1]):
                break
            ends[:, 1:-1] = places
            centers = self.centers(ends, centers)
        return centers


def _running(values: F64) -> F64:
    sums = np.zeros((len(values), values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def _search(ordered: F64, wanted: F64) -> NDArray[np.intp]:
    """How many values of each row of ``ordered`` ``[n, k]`` are below each of ``wanted``
    ``[n, m]``."""
    k = ordered.shape[1]
    low = np.zeros(wanted.shape, np.intp)
    high = np.full(wanted.shape, k, np.intp)
    for _ in range(k.bit_length()):
        middle = (low + high) // 2
        below = np.take_along_axis(ordered, np.minimum(middle, k - 1), axis=1) < wanted
        open_ = low < high
        low = np.where(open_ & below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low


def _nearest(matrix: F32, books: F32) -> NDArray[np.uint8]:
    """The code of the nearest value of each row's ascending codebook."""
    bounds = (books[:, 1:].astype(np.float64) + books[:, :-1]) / 2
    codes = np.zeros(matrix.shape, np.uint8)
    for bound in bounds.T:
        codes += matrix > bound[:, None]
    return codes
