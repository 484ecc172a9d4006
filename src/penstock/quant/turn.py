"""Turning vectors so that no component stands out: random signs and Hadamard's matrix.

Tseng et al., QuIP#: Even Better LLM Quantization with Hadamard Incoherence and Lattice Codebooks,
2024 (arXiv 2402.04396), section 3: a matrix that is turned on both sides has values like those of a
normal distribution, whatever it had before, and so one codebook serves all matrices.

Unlike :mod:`penstock.quant.hadamard`, whose blocks are powers of two up to 512 and which leaves the
outputs of a product as they are, this is of whole vectors, and undone behind the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.quant.paley import paley_matrix

F32 = NDArray[np.float32]
Side = Literal["input", "output"]

_SYLVESTER: Final = np.array([[1, 1], [1, -1]], np.float32)


@dataclass(frozen=True)
class Turn:
    """An orthogonal transform of vectors of ``size`` components: each times a sign, then blocks of
    :attr:`block` times Hadamard's matrix of that order, divided by the root of it.

    The matrix is Sylvester's of order :attr:`doubled` (Kronecker's) times Paley's of order
    :attr:`base`, or Sylvester's alone where that is 1. A block is the whole vector where there is
    such a matrix, and else the largest part that divides it and has one.
    """

    size: int
    seed: int
    """Which signs, from 0 to 2**31 - 1."""
    side: Side
    """The columns of a product's matrix, which multiply inputs, or its rows; each have signs of
    their own."""

    @cached_property
    def _factors(self) -> tuple[int, int]:
        return block_factors(self.size)

    @property
    def doubled(self) -> int:
        return self._factors[0]

    @property
    def base(self) -> int:
        return self._factors[1]

    @property
    def block(self) -> int:
        """Components of a block."""
        return self.doubled * self.base

    @property
    def factors(self) -> tuple[F32, F32]:
        """Two matrices of 1 and -1, read-only, of about equal sizes, of which a block's is the
        Kronecker product: Sylvester's, and what is left. A block that is written as a matrix X
        becomes ``left X right.T``, divided by the root of its size; X again by ``left X right``."""
        return _dense_factors(self.doubled, self.base)

    @cached_property
    def signs(self) -> F32:
        """1 or -1 for each component: the lowest bit of a hash of its place, the seed and the
        side."""
        salt = (2 * self.seed + (self.side == "output")) & 0xFFFFFFFF
        mixed = np.arange(self.size, dtype=np.uint32) * np.uint32(0x9E3779B1)
        mixed ^= np.uint32(salt * 0xC2B2AE3D & 0xFFFFFFFF)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            mixed = (mixed ^ mixed >> np.uint32(shift)) * np.uint32(factor)
        mixed ^= mixed >> np.uint32(16)
        return np.where(mixed & np.uint32(1), np.float32(-1), np.float32(1)).astype(np.float32)

    def forward(self, x: NDArray[np.floating]) -> F32:
        """Vectors ``[rows, size]``, turned, in float32. No row depends on another."""
        return self._transformed(x.astype(np.float32) * self.signs, back=False)

    def back(self, x: NDArray[np.floating]) -> F32:
        """What :meth:`forward` made ``x`` of, but for rounding."""
        return self._transformed(x.astype(np.float32), back=True) * self.signs

    def _transformed(self, x: F32, back: bool) -> F32:
        left, right = self.factors
        # A vector at a time, whatever the number of them is.
        blocks = x.reshape(-1, len(left), len(right))
        y = np.matmul(np.matmul(left, blocks), right if back else right.T)
        turned: F32 = y.reshape(x.shape) * np.float32(self.block**-0.5)
        return turned


@cache
def _dense_factors(doubled: int, base: int) -> tuple[F32, F32]:
    """As :attr:`Turn.factors` has them."""
    paley = np.ones((1, 1), np.int8) if base == 1 else paley_matrix(base)
    assert paley is not None
    right = paley.astype(np.float32)
    while doubled > 1 and len(right) < doubled:
        right = np.kron(_SYLVESTER, right)
        doubled //= 2
    left = np.ones((1, 1), np.float32)
    while len(left) < doubled:
        left = np.kron(_SYLVESTER, left)
    for each in (left, right):
        each.flags.writeable = False
    return left, right


def block_factors(size: int) -> tuple[int, int]:
    """A power of two and an order of Paley's, or 1, whose product divides ``size`` and is the
    largest such one; of equal products the one with the smaller order."""
    for block in range(size, 0, -1):
        if size % block:
            continue
        odd = block
        while odd % 2 == 0:
            odd //= 2
        base = odd
        while base <= block and block % base == 0:
            if base == 1 or paley_matrix(base) is not None:
                return block // base, base
            base *= 2
    raise ValueError(f"a vector of {size} components has no blocks")
