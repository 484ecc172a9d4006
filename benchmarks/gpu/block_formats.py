"""Checkpoints in blocks and in points, of which the kernels are compiled and timed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.models.gguf.blocks import BlockMatrix
from penstock.models.lattice_codes import LatticeCodes
from penstock.quant.formats import GGUF_FORMATS
from penstock.quant.scheme import BlockScheme, LatticeBits, LatticeScheme


@dataclass(frozen=True)
class BlockFormats:
    """A checkpoint in blocks (``models.quantized.QuantizedFormat``): of the format by the last word
    of a matrix's name, or else of ``other``; experts alone, where there are ``only`` these."""

    other: str
    by_word: Mapping[str, str] = field(default_factory=dict, hash=False)
    only: bool = False
    any_order: bool = False
    notes: tuple[str, ...] = ()
    as_floats: tuple[str, ...] = ()

    @property
    def schemes(self) -> tuple[BlockScheme, ...]:
        return tuple(GGUF_FORMATS[name].scheme for name in {self.other, *self.by_word.values()})

    def matrix(self, name: str, columns: int | None = None) -> BlockMatrix | None:
        if self.only and ".experts." not in name:
            return None
        return BlockMatrix(
            GGUF_FORMATS[self.by_word.get(name.rpartition(".")[2], self.other)].scheme
        )

    def limited(self, formats: Collection[str], rounded: bool) -> BlockFormats:
        return self

    def is_idle(self, tensor: str) -> bool:
        return False


@dataclass(frozen=True)
class LatticePoints:
    """A checkpoint whose layers' matrices are points of a lattice."""

    bits: LatticeBits
    any_order: bool = False
    notes: tuple[str, ...] = ()
    as_floats: tuple[str, ...] = ()

    @property
    def schemes(self) -> tuple[LatticeScheme, ...]:
        return (LatticeScheme(self.bits, seed=0),)

    def matrix(self, name: str, columns: int | None = None) -> LatticeCodes | None:
        if not name.startswith("layers."):
            return None
        return LatticeCodes(self.bits, 0, decoded=columns is None)

    def limited(self, formats: Collection[str], rounded: bool) -> LatticePoints:
        return self

    def is_idle(self, tensor: str) -> bool:
        return False
