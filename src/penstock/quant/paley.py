"""Hadamard's matrices of orders that are no powers of two, as Paley found them.

Paley, On Orthogonal Matrices, 1933. Let q be a power of an odd prime, and X the matrix over the
elements of the field of q of which ``X[a, b]`` is 1 where a - b is a square, -1 where it is none,
and 0 for a = b. With q = 3 modulo 4 there is one of order q + 1, else one of order 2 (q + 1).
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

I8 = NDArray[np.int8]

MOST: Final = 1024
"""The largest order that is looked for: a product by the matrix takes as many operations a
column."""
_DEGREES: Final = 3
"""The most digits of a field's elements: a polynomial of so low a degree has a factor just where it
has a root."""


@cache
def paley_matrix(order: int) -> I8 | None:
    """A matrix ``[order, order]`` of 1 and -1 whose rows are orthogonal, read-only; None where
    neither of the two constructions has one of this order, or it is above 1,024."""
    if order % 4 or not 4 <= order <= MOST:
        return None
    q = order - 1
    if q % 4 == 3 and (squares := _differences_that_are_squares(q)) is not None:
        made = _bordered(squares, -1) + np.eye(order, dtype=np.int8)
    elif (q := order // 2 - 1) % 4 == 1 and (
        squares := _differences_that_are_squares(q)
    ) is not None:
        ones = np.array([[1, 1], [1, -1]], np.int8)
        diagonal = np.array([[1, -1], [-1, -1]], np.int8)
        made = np.kron(_bordered(squares, 1), ones) + np.kron(
            np.eye(q + 1, dtype=np.int8), diagonal
        )
    else:
        return None
    made.flags.writeable = False
    return made


def _bordered(squares: I8, left: int) -> I8:
    """X below a row of ones and behind a column of ``left``, with 0 in the corner."""
    made = np.pad(squares, ((1, 0), (1, 0)))
    made[0, 1:], made[1:, 0] = 1, left
    return made


def _differences_that_are_squares(q: int) -> I8 | None:
    """X of the field of q elements; None where there is none, or its degree is above 3."""
    root = _prime_and_degree(q)
    if root is None:
        return None
    p, degree = root
    digits = np.array(list(product(range(p), repeat=degree)), np.int64)  # lowest power last
    places = p ** np.arange(degree)[::-1]
    character = np.full(q, -1, np.int8)
    character[_times(digits, digits, _irreducible(p, degree), p) @ places] = 1
    character[0] = 0
    found: I8 = character[(digits[:, None] - digits[None]) % p @ places]
    return found


def _prime_and_degree(q: int) -> tuple[int, int] | None:
    """The odd prime p and the degree, at most 3, of which q is the power."""
    p = next((i for i in range(3, q + 1, 2) if q % i == 0), None)
    if p is None:
        return None
    return next(((p, degree) for degree in range(1, _DEGREES + 1) if p**degree == q), None)


def _irreducible(p: int, degree: int) -> NDArray[np.int64]:
    """The coefficients below the highest, which is 1, of a polynomial without a root modulo p."""
    x = np.arange(p)
    powers = np.stack([x**i for i in range(degree)][::-1], axis=1)
    for lower in product(range(p), repeat=degree):
        values = (x**degree + powers @ np.array(lower)) % p
        if degree == 1 or values.all():
            return np.array(lower, np.int64)
    raise AssertionError("there is an irreducible polynomial of every degree")


def _times(
    a: NDArray[np.int64], b: NDArray[np.int64], lower: NDArray[np.int64], p: int
) -> NDArray[np.int64]:
    """Products of polynomials ``[count, degree]``, modulo p and the polynomial ``lower`` is of."""
    degree = a.shape[1]
    whole = np.zeros((len(a), 2 * degree - 1), np.int64)
    for i in range(degree):
        whole[:, i : i + degree] += a[:, i : i + 1] * b
    for i in range(degree - 1):  # the highest power that is left, by lower ones
        whole[:, i + 1 : i + 1 + degree] -= whole[:, i : i + 1] % p * lower
    return whole[:, degree - 1 :] % p
