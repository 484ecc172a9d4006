"""How the matrices of a GGUF file are quantized: each in blocks of the type that its tensor has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from penstock.interface.sources import Shape, Stored
from penstock.models.names import NameMap
from penstock.quant.formats import GGUF_FORMATS
from penstock.quant.scheme import BlockScheme

_SUFFIX: Final = ".weight"
_OF_HEADS: Final = (".k_up", ".v_up")
"""Matrices that are one for each head, which are multiplied as floats."""


@dataclass(frozen=True)
class BlockMatrix:
    """A matrix in one tensor of blocks, or matrices one below another in one."""

    scheme: BlockScheme
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = True

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        return (Stored(f"{name}{_SUFFIX}", shape, "blocks"),)

    def optional(self, name: str) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class GgufTypes:
    """The types of a file's tensors, and which of them are read as they are.

    As text, the types of its matrices, most frequent first.
    """

    types: Mapping[str, str] = field(hash=False)
    """The type of each tensor in blocks, by the tensor's name."""
    names: NameMap = field(hash=False)
    kept: frozenset[str]
    """Types that are read as blocks; all others are read as floats."""
    any_order: bool = False
    notes: tuple[str, ...] = ()
    as_floats: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "GGUF: " + _counted(Counter(e for e in self.types.values() if e in self.kept))

    @property
    def schemes(self) -> tuple[BlockScheme, ...]:
        kept = self.kept.intersection(self.types.values())
        return tuple(GGUF_FORMATS[name].scheme for name in sorted(kept))

    def matrix(self, name: str, columns: int | None = None) -> BlockMatrix | None:
        """How the matrix of a product is stored, by its canonical name; None: it is read as
        floats."""
        if name.endswith(_OF_HEADS):
            return None
        for tensor in self.names.matrices(name):
            if tensor in self.names.factors and tensor in self.types:
                return None
            kind = self.types.get(tensor)
            if kind is not None and kind in self.kept:
                return BlockMatrix(GGUF_FORMATS[kind].scheme)
        return None

    def is_idle(self, tensor: str) -> bool:
        """No tensor: all that are there are weights."""
        return False

    def limited(self, formats: Collection[str], rounded: bool) -> GgufTypes | None:
        """As :class:`~penstock.models.quantized.QuantizedFormat` has it. What a file has in blocks
        is never rounded: options that ask for it are refused."""
        limited = replace(self, kept=self.kept.intersection(formats))
        return limited if limited.schemes else None

    def left_out(self, formats: Collection[str]) -> str:
        """The types that are not among ``formats``, with how many tensors each has; empty: none."""
        counts = Counter(each for each in self.types.values() if each not in formats)
        return _counted(counts)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} x {count}" for name, count in counts.most_common())
