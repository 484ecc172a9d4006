"""How matrices in blocks of published formats lie on the GPU: as data, for packing and kernels.

A block's codes, its scales and what is added to its values lie apart, in as many bytes as files
have, so that threads load 16 bytes of codes at once. A *plane* is 16, 32 or 64 columns with one
scale. Codes lie in words, the ``low`` bits of four planes in each (of two, where a code has 8),
as those of other quantized weights (``packing.py``): word j has columns ``j``, ``plane + j``, ...
Further bits of codes lie in bytes of their own.

What planes share are *marks*: as int32, so many for each 128 columns. In formats of two levels
they are bytes, which numbers of each 256 columns multiply: *units*, two in float16 in an int32, or
one in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Values = Literal["whole", "signed", "iq4", "e2m1", "e4m3"]
Scales = Literal["halves", "levels", "pairs", "e8m0", "e4m3", "products", "powers", "singles"]

MARKED: Final = 128
"""Columns whose marks lie together."""
LEVELED: Final = 256
"""Columns that share units."""


class BlockLayout(msgspec.Struct, frozen=True):
    """Where the codes and scales of a format lie: a value is ``scale * point``, or
    ``scale * point + least``. Kernels are compiled for each (``kernels/block_operands.py``)."""

    low: Literal[2, 4, 8]
    """Bits of a code that lie in words: of 16 bits, or of 8 where there are two."""
    plane: Literal[16, 32, 64]
    scales: Scales
    """What marks are. ``halves``: numbers in float16, scales or scale and least value of a plane;
    ``levels``: bytes of scales, then those of least values; ``pairs``: a byte has 4 bits of each;
    ``e8m0``: exponents, and ``e4m3``: numbers of 4 bits of exponent and 3 of mantissa, for points
    that are twice what they stand for; ``products``: these, which a float32 multiplies; ``powers``:
    exponents; ``singles``: float32, of ``shared`` columns."""
    least: bool = False
    high: Literal[0, 1, 2] = 0
    """Bits of a code that lie in bytes, above the low ones."""
    values: Values = "whole"
    """The points that codes stand for: themselves less ``zero``, themselves with a sign, or the
    values of a table."""
    zero: int = 0
    shared: int = 0

    @property
    def bits(self) -> int:
        return self.low + self.high

    @property
    def planes(self) -> int:
        """Planes of a word."""
        return 2 if self.low == 8 else 4

    @property
    def levels(self) -> bool:
        """Whether there are units."""
        return self.scales in ("levels", "pairs", "products")

    @property
    def depth(self) -> int:
        """Columns of an iteration: of whole bytes of high bits, and of units."""
        return LEVELED if self.levels or 8 * self.high * self.plane == LEVELED else MARKED

    @property
    def marks(self) -> int:
        """int32 of marks for each 128 columns."""
        planes = MARKED // self.plane
        both = 2 if self.least else 1
        if self.scales == "halves":
            return planes * both // 2
        if self.scales == "singles":
            return MARKED // self.shared
        return planes // 4 * (both if self.scales == "levels" else 1)

    def nbytes(self, n: int, k: int) -> int:
        """Device memory of an ``[n, k]`` matrix, padding included."""
        padded = -(-k // self.depth) * self.depth
        nbytes = padded * self.bits // 8 + padded // MARKED * self.marks * 4
        return n * (nbytes + (padded // LEVELED * 4 if self.levels else 0))


BLOCK_LAYOUTS: Final[Mapping[str, BlockLayout]] = {
    "Q4_0": BlockLayout(4, 32, "halves", zero=8),
    "Q4_1": BlockLayout(4, 32, "halves", least=True),
    "Q5_0": BlockLayout(4, 32, "halves", high=1, zero=16),
    "Q5_1": BlockLayout(4, 32, "halves", least=True, high=1),
    "Q8_0": BlockLayout(8, 32, "halves", values="signed"),
    "Q2_K": BlockLayout(2, 16, "pairs", least=True),
    "Q3_K": BlockLayout(2, 16, "levels", high=1, zero=4),
    "Q4_K": BlockLayout(4, 32, "levels", least=True),
    "Q5_K": BlockLayout(4, 32, "levels", least=True, high=1),
    "Q6_K": BlockLayout(4, 16, "levels", high=2, zero=32),
    "IQ4_NL": BlockLayout(4, 32, "halves", values="iq4"),
    "IQ4_XS": BlockLayout(4, 32, "levels", values="iq4"),
    "MXFP4": BlockLayout(4, 32, "e8m0", values="e2m1"),
    "NVFP4": BlockLayout(4, 16, "e4m3", values="e2m1"),
    "NVFP4_SCALED": BlockLayout(4, 16, "products", values="e2m1"),
    "FP8_128": BlockLayout(8, 64, "singles", values="e4m3", shared=128),
    "FP8_32": BlockLayout(8, 32, "singles", values="e4m3", shared=32),
    "MXFP8": BlockLayout(8, 32, "powers", values="e4m3"),
}
"""The layouts of formats of ``quant.formats`` that kernels multiply by, experts' too, and look rows
up in."""
