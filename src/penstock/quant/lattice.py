"""E8P and the smaller codebook beside it: points of the lattice E8, of which 8 weights become one.

Tseng et al., QuIP#, 2024 (arXiv 2402.04396), section 4. E8 is the vectors of 8 integers, or of 8
halves of odd ones, whose sum is even; of all lattices in 8 dimensions it packs spheres most
densely. E8P has 65,536 points of E8 moved by a quarter, and needs a table of 256 rows alone:

- 8 bits of a code choose the magnitudes: all 227 vectors of positive halves of odd numbers whose
  squared length is at most 10, and 29 of those with 12;
- 7 bits say which of the first 7 components are negative. The sum is to be even, which decides the
  eighth;
- 1 bit moves all components by a quarter, up (0) or down (1).

A code is 16 bits: magnitudes in bits 0 to 7, the sign of component i in bit 8 + i, the move in
bit 15.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

SIZE: Final = 8
"""Components of a point."""
QUARTER: Final = np.float32(0.25)
_LONGEST: Final = 10
"""The squared length up to which all magnitudes are there."""
_LONGER: Final = 29
"""How many there are of the next squared length, 12."""
_AXES: Final = 15
"""Points of squared length 4 that fill the smaller codebook."""


@cache
def magnitudes() -> F32:
    """The 256 vectors of magnitudes ``[256, 8]``, read-only, in the order of their codes: those
    with an even number of negative components first, each of these by squared length and
    components.

    Of squared length 12 are those with three components of a half and five of three halves, of
    which the first 29 are taken by the sum of the three places modulo 8, then by the places: so
    each component is a half about as often as the others.
    """
    short = [
        halves
        for halves in product((0.5, 1.5, 2.5), repeat=SIZE)
        if sum(h * h for h in halves) <= _LONGEST
    ]
    places = sorted(combinations(range(SIZE), 3), key=lambda three: (sum(three) % SIZE, three))
    long = [tuple(0.5 if i in three else 1.5 for i in range(SIZE)) for three in places[:_LONGER]]
    ordered = sorted(short + long, key=lambda v: (sum(v) % 2, sum(h * h for h in v), v))
    found = np.array(ordered, np.float32)
    found.flags.writeable = False
    return found


@cache
def first_odd() -> int:
    """The place of the first magnitudes with an odd number of negative components."""
    return int((magnitudes().sum(axis=1) % 2 == 0).sum())


def points_of(codes: NDArray[np.uint16]) -> F32:
    """The points of E8P ``[..., 8]`` of codes ``[...]``; all are odd numbers of quarters, up to
    2.75."""
    kind = (codes & np.uint16(255)).astype(np.intp)
    bits = codes[..., None] >> np.arange(8, 15, dtype=np.uint16) & np.uint16(1)
    negative = np.empty((*codes.shape, SIZE), bool)
    negative[..., :7] = bits
    odd = kind >= first_odd()
    negative[..., 7] = (bits.sum(axis=-1) % 2 == 1) != odd
    signed = np.where(negative, -magnitudes()[kind], magnitudes()[kind])
    moved = np.where(codes >> np.uint16(15), -QUARTER, QUARTER)
    result: F32 = signed + moved[..., None]
    return result


@cache
def small_points() -> F32:
    """The codebook of 256 points for 1 bit a weight ``[256, 8]``, read-only: 0, the 240 shortest
    others of E8, of squared length 2, and the first 15 of the 16 points of length 2 on its axes.

    By squared length and components.
    """
    whole = [np.zeros(SIZE)]
    for first, second in combinations(range(SIZE), 2):
        for signs in product((-1, 1), repeat=2):
            whole.append(np.zeros(SIZE))
            whole[-1][[first, second]] = signs
    halves = [np.array(v) for v in product((-0.5, 0.5), repeat=SIZE) if sum(v) % 2 == 0]
    axes = [sign * 2.0 * np.eye(SIZE)[i] for i in range(SIZE) for sign in (-1, 1)]
    chosen = whole + halves + axes[:_AXES]
    ordered = sorted(chosen, key=lambda v: (float(v @ v), tuple(v)))
    found = np.array(ordered, np.float32)
    found.flags.writeable = False
    return found


@cache
def every_point() -> F32:
    """The points of all codes of E8P ``[65536, 8]``, read-only: 2 MiB."""
    found = points_of(np.arange(1 << 16, dtype=np.uint16))
    found.flags.writeable = False
    return found
