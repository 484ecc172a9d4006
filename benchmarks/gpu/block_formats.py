"""Checkpoints in blocks, of which the kernels are compiled and timed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.models.gguf.blocks import BlockMatrix
from penstock.quant.formats import GGUF_FORMATS
from penstock.quant.scheme import BlockScheme


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
