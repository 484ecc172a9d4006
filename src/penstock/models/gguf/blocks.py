"""How the matrices of a GGUF file are quantized: each in blocks of the type that its tensor has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from penstock.interface.sources import Shape, Stored
from penstock.models.names import NameMap
from penstock.quant.formats import BLOCK_FORMATS, GGUF_FORMATS
from penstock.quant.scheme import BlockScheme

FACTOR: Final = ".scale"
"""What follows the name of a matrix in that of the factor of what it makes."""
_SUFFIX: Final = ".weight"
_WITH_FACTORS: Final = {"NVFP4": "NVFP4_SCALED"}
"""Formats of which another has the same values times a factor of each row, by their names."""
_OF_HEADS: Final = (".k_up", ".v_up")
"""Matrices that are one for each head, which are multiplied as floats."""


@dataclass(frozen=True)
class BlockMatrix:
    """A matrix in one tensor of blocks, or matrices one below another in one.

    The blocks of a file have no factor of their row. A scheme whose blocks have one is made of
    those without and of a second tensor, which has the matrix's factor, or one of each matrix.
    """

    scheme: BlockScheme
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = True

    @property
    def has_factors(self) -> bool:
        """Whether there is that second tensor."""
        return self.scheme.format not in GGUF_FORMATS

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        blocks = Stored(f"{name}{_SUFFIX}", shape, "blocks")
        if not self.has_factors:
            return (blocks,)
        return blocks, Stored(f"{name}{FACTOR}", shape[:-2] or (1,), loose=True)

    def optional(self, name: str) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class GgufTypes:
    """The formats of a file's tensors, and which of them are read as they are.

    As text, the formats of its matrices, most frequent first.
    """

    formats: Mapping[str, str] = field(hash=False)
    """The format of each tensor in blocks, by the tensor's name: its type, or what :meth:`of` makes
    of one that has a factor."""
    names: NameMap = field(hash=False)
    kept: frozenset[str] = frozenset(BLOCK_FORMATS)
    """Formats that are read as blocks; all others are read as floats."""
    any_order: bool = False
    notes: tuple[str, ...] = ()
    as_floats: tuple[str, ...] = ()

    @classmethod
    def of(cls, types: Mapping[str, str], names: NameMap) -> GgufTypes | None:
        """The formats of tensors of these ``types``; None where none is in blocks.

        Those with a factor (``NameMap.factors``) have a format that keeps it, or are left out, and
        so become floats.
        """
        formats = {
            name: _WITH_FACTORS.get(kind) if name in names.factors else kind
            for name, kind in types.items()
            if kind in GGUF_FORMATS
        }
        kept = {name: form for name, form in formats.items() if form is not None}
        return cls(kept, names) if kept else None

    def __str__(self) -> str:
        return "GGUF: " + _counted(Counter(e for e in self.formats.values() if e in self.kept))

    @property
    def schemes(self) -> tuple[BlockScheme, ...]:
        kept = self.kept.intersection(self.formats.values())
        return tuple(BLOCK_FORMATS[name].scheme for name in sorted(kept))

    def matrix(self, name: str, columns: int | None = None) -> BlockMatrix | None:
        """How the matrix of a product is stored, by its canonical name; None: it is read as
        floats."""
        if name.endswith(_OF_HEADS):
            return None
        for tensor in self.names.matrices(name):
            form = self.formats.get(tensor)
            if form is not None and form in self.kept:
                return BlockMatrix(BLOCK_FORMATS[form].scheme)
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
        """The formats that are not among ``formats``, with how many tensors each has; empty:
        none."""
        counts = Counter(each for each in self.formats.values() if each not in formats)
        return _counted(counts)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} x {count}" for name, count in counts.most_common())
