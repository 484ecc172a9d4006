"""QuIP#: matrices turned on both sides, 8 weights of which become a point of E8P or the sum of two.

Tseng et al., QuIP#, 2024 (arXiv 2402.04396); without its fine-tuning. What turns a matrix is
:class:`~penstock.quant.turn.Turn`, the points are those of :mod:`penstock.quant.lattice`, and the
order in which they are chosen is :func:`~penstock.quantize.ldlq.ldlq`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.models import quip
from penstock.models.lattice_codes import CODES, SCALE
from penstock.quant.lattice import SIZE
from penstock.quant.lattice_matrix import (
    RESIDUAL_SCALES,
    LatticeMatrix,
    decoded,
)
from penstock.quant.scheme import LATTICE, LatticeBits, LatticeScheme
from penstock.quant.turn import Turn
from penstock.quantize.forms.form import Arrays
from penstock.quantize.grid import F32
from penstock.quantize.ldlq import ldlq
from penstock.quantize.nearest import nearest_codes, nearest_small

_SIZES: Final[Mapping[LatticeBits, float]] = {2: 0.93, 3: 0.92, 4: 0.94}
"""The root of the mean square that turned weights are scaled to.

Of normally distributed numbers 1.03, 1.0 and 0.94 lose least (0.0918, 0.0298 and 0.0087 of their
squares). But what is rounded has the errors of later columns added, and so is larger: of matrices
with inputs that depend on each other, 0.9, 0.91 and 0.94 lost least, at 2 bits 10 % less."""


@dataclass(frozen=True)
class StoredLattice:
    """A matrix of points, and its tensors."""

    matrix: LatticeMatrix

    def dequantize(self) -> F32:
        """What the codes stand for, ``[n, k]``."""
        return self.matrix.dequantize()

    def arrays(self) -> Arrays:
        """The tensors, by what follows the module's name and a dot."""
        return {
            CODES: self.matrix.codes,
            SCALE: np.array([self.matrix.scale], np.float32),
        }


@dataclass(frozen=True)
class Lattice:
    """Points of 2, 3 or 4 bits a weight, of matrices turned by the signs of ``seed``."""

    bits: LatticeBits
    seed: int

    group_size: None = None

    def config(self, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Form.config` has it."""
        return {
            "quant_method": quip.METHOD,
            "codebook": LATTICE,
            "bits": self.bits,
            "seed": self.seed,
            quip.FLOATS: list(floats),
        }

    def of_joined(self, matrices: Sequence[F32]) -> Lattice:
        """Matrices share nothing but the signs."""
        return self

    def round(self, matrix: F32, name: str) -> StoredLattice:
        """Round to nearest, once turned."""
        return self.rounded(matrix, np.eye(matrix.shape[1], dtype=np.float32), 0.0, name)

    def rounded(
        self, matrix: F32, hessian: NDArray[np.floating], damping: float, name: str
    ) -> StoredLattice:
        """Round ``matrix`` ``[n, k]`` by LDLQ, with the ``hessian`` ``[k, k]`` of its inputs.

        Raises WeightError, naming it, where values are too large, and as
        :func:`~penstock.quantize.ldlq.ldlq` does.
        """
        n, k = matrix.shape
        columns, rows = Turn(k, self.seed, "input"), Turn(n, self.seed, "output")
        with np.errstate(over="ignore", invalid="ignore"):
            turned = rows.forward(columns.forward(matrix).T).T
            scale = np.float32(np.sqrt(np.square(turned).mean()) / _SIZES[self.bits])
        if not np.isfinite(scale):
            raise WeightError(f"{name} has values too large to be turned in float32")
        # What multiplies nothing, behind the last column, completes the last block.
        behind = -k % SIZE
        wanted = np.zeros((n, k + behind), np.float32)
        wanted[:, :k] = turned / scale if scale else turned
        turned_hessian = columns.forward(columns.forward(hessian).T)
        mean = np.diagonal(turned_hessian).mean()
        whole = np.pad(turned_hessian, ((0, behind), (0, behind)))
        whole[range(k, k + behind), range(k, k + behind)] = mean
        codes = np.empty((n, (k + behind) // SIZE, self.bits), np.uint8)

        def nearest(some: F32, block: int) -> F32:
            codes[:, block] = own = self._nearest(some)
            return decoded(own)

        ldlq(wanted, whole, nearest, damping, name)
        return StoredLattice(LatticeMatrix(LatticeScheme(self.bits, self.seed), codes, scale, k))

    def _nearest(self, x: F32) -> NDArray[np.uint8]:
        """The bytes ``[rows, bits]`` of the points nearest to rows of x ``[rows, 8]``: the first
        point is the nearest, the second is nearest to what that leaves."""
        first = _octets(nearest_codes(x))
        if self.bits == 2:
            return first
        left = (x - decoded(first)) * RESIDUAL_SCALES[self.bits]
        second = nearest_small(left)[:, None] if self.bits == 3 else _octets(nearest_codes(left))
        return np.concatenate([first, second], axis=1)


def _octets(codes: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Codes as two bytes each, the low one first."""
    low, high = codes & np.uint16(255), codes >> np.uint16(8)
    return np.stack([low, high], axis=1).astype(np.uint8)
