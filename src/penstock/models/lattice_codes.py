"""How checkpoints store matrices of lattice points: as codes, and a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.interface.sources import Shape, Stored
from penstock.quant.lattice import SIZE
from penstock.quant.scheme import LatticeBits, LatticeScheme

CODES: Final = "weight_codes"
SCALE: Final = "weight_scale"


@dataclass(frozen=True)
class LatticeCodes:
    """``weight_codes`` uint8 ``[n, ceil(k / 8), bits]`` and ``weight_scale`` ``[1]``, as
    :class:`~penstock.quant.lattice_matrix.LatticeMatrix` has them."""

    bits: LatticeBits
    seed: int
    decoded: bool = True
    """Whether the matrix becomes floats as it is read, for backends that do not multiply by it."""
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"E8P of {self.bits} bits"

    @property
    def scheme(self) -> LatticeScheme | None:
        return None if self.decoded else LatticeScheme(self.bits, self.seed)

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        n, k = shape
        return (
            Stored(f"{name}.{CODES}", (n, -(-k // SIZE), self.bits), "uint8"),
            Stored(f"{name}.{SCALE}", (1,)),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return ()
