"""Where the weights of a plan are in a checkpoint, as data.

A *source* is an expression over a checkpoint's tensors: :class:`Stored` is a tensor as it lies in
the file, and the other types are operations on sources, such as slices, stacks and transposes. The
keys' matrix in a fused ``qkv_proj`` of 6,144 rows is, for example,
``RowsOf(Stored("...qkv_proj.weight", (6144, 4096)), ((4096, 5120),))``. ``models/names.py`` writes
sources, ``plan/shares.py`` wraps them so that a rank reads its own rows alone, and
``weights/sources.py`` evaluates them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

Shape = tuple[int, ...]

Element = Literal["float", "int32", "integer", "uint8", "int8", "float8", "scale", "blocks"]
"""What a tensor holds. float: any type that models are served from; integer: of 32 or 64 bits;
float8: E4M3; scale: floats, or powers of two in a byte (E8M0, also as U8); blocks: as a published
format has them (``quant/formats``)."""


@dataclass(frozen=True)
class Stored:
    """The tensor ``name`` of a checkpoint, of this shape."""

    name: str
    shape: Shape
    element: Element = "float"
    loose: bool = False
    """Whether dimensions of 1 may be there or not."""


class PackedFormat(Protocol):
    """How a quantized matrix is stored in tensors of a checkpoint. Formats compare by value."""

    @property
    def any_order(self) -> bool:
        """Whether the columns of a group may lie anywhere in a matrix, which weights tell."""
        ...

    @property
    def stacks(self) -> bool:
        """Whether its tensors may have all matrices of a stack."""
        ...

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        """The tensors of matrix ``name`` ``[n, k]``, or of a stack ``[number, n, k]``."""
        ...

    def optional(self, name: str) -> tuple[str, ...]:
        """Names of further tensors that are read where they are there."""
        ...


@dataclass(frozen=True)
class Packed:
    """A matrix ``[n, k]`` that the checkpoint has quantized, or a stack ``[number, n, k]`` of such,
    as tensors whose names begin with ``name``.

    It is read as it is quantized, or as floats where no kernel has its format. A stack that is read
    as it is quantized is one matrix ``[number * n, k]``.
    """

    name: str
    shape: Shape
    format: PackedFormat

    @property
    def rows(self) -> int:
        """Rows of all its matrices."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1]


@dataclass(frozen=True)
class RowsOf:
    """Slices of the first dimension, joined: rows of a tensor or of a quantized matrix, or matrices
    of a stack. Each of ``runs`` is (first, end)."""

    source: Source
    runs: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> Shape:
        return (sum(end - first for first, end in self.runs), *self.source.shape[1:])


@dataclass(frozen=True)
class Stacked:
    """Tensors of one shape, one behind the other, such as a layer's experts."""

    sources: tuple[Source, ...]

    @property
    def shape(self) -> Shape:
        return (len(self.sources), *self.sources[0].shape)


@dataclass(frozen=True)
class Transposed:
    """A matrix that is stored as ``[inputs, outputs]``, or a stack of such."""

    source: Source

    @property
    def shape(self) -> Shape:
        *stack, rows, columns = self.source.shape
        return (*stack, columns, rows)


@dataclass(frozen=True)
class RowsOfEach:
    """Some rows of each matrix of a stack ``[number, n, k]``, or of each bias of one
    ``[number, n]``: ``count`` of them, from ``first`` on, ``step`` apart."""

    source: Source
    first: int
    count: int
    step: int = 1

    @property
    def shape(self) -> Shape:
        return (self.source.shape[0], self.count, *self.source.shape[2:])


@dataclass(frozen=True)
class Unpaired:
    """Rows of ``heads`` heads put from the interleaved rotary layout into the halves that kernels
    rotate: row 2 i of a head of the source becomes row i, and row 2 i + 1 the one half a head
    behind it. GGUF files have Llama's queries and keys interleaved."""

    source: Source
    heads: int

    @property
    def shape(self) -> Shape:
        return self.source.shape


@dataclass(frozen=True)
class Flat:
    """A vector that is stored as a matrix of one row, or a matrix as a stack of one."""

    source: Source

    @property
    def shape(self) -> Shape:
        return self.source.shape[1:]


@dataclass(frozen=True)
class Squeezed:
    """A matrix ``[n, k]`` that is stored as ``[n, 1, k]``: the taps of a convolution that takes
    every column by itself."""

    source: Source

    @property
    def shape(self) -> Shape:
        return (self.source.shape[0], *self.source.shape[2:])


@dataclass(frozen=True)
class Merged:
    """The matrices of a stack ``[number, n, k]``, one below another: ``[number * n, k]``."""

    source: Source

    @property
    def shape(self) -> Shape:
        number, rows, *columns = self.source.shape
        return (number * rows, *columns)


@dataclass(frozen=True)
class Logarithm:
    """``log(-x)`` of a tensor x, all of whose values are negative, in float32."""

    source: Source

    @property
    def shape(self) -> Shape:
        return self.source.shape


@dataclass(frozen=True)
class Factored:
    """A tensor times ``factors``, in float32: one number, or one for each matrix of a stack."""

    source: Source
    factors: Source

    @property
    def shape(self) -> Shape:
        return self.source.shape


@dataclass(frozen=True)
class Constant:
    """A weight that the checkpoint has no tensor of: every element is ``value``."""

    value: float
    shape: Shape


@dataclass(frozen=True)
class OneOf:
    """Alternatives of one shape, of which checkpoints have one: the first all of whose tensors are
    there."""

    sources: tuple[Source, ...]

    @property
    def shape(self) -> Shape:
        return self.sources[0].shape


@dataclass(frozen=True)
class Shifted:
    """A tensor plus a constant, added in float32; the sum stays in float32."""

    source: Source
    by: float

    @property
    def shape(self) -> Shape:
        return self.source.shape


@dataclass(frozen=True)
class ScaledRows:
    """A tensor whose rows are multiplied in float32, run after run: ``factors`` are pairs of a
    number of rows and what these are multiplied by."""

    source: Source
    factors: tuple[tuple[int, float], ...]

    @property
    def shape(self) -> Shape:
        return self.source.shape


@dataclass(frozen=True)
class UnitRows:
    """A matrix each of whose rows is divided by its Euclidean length, in float32. A row that is
    shorter than 1e-12 is divided by that."""

    source: Source

    @property
    def shape(self) -> Shape:
        return self.source.shape


Derived = (
    RowsOf
    | RowsOfEach
    | Transposed
    | Unpaired
    | Flat
    | Squeezed
    | Merged
    | Logarithm
    | Shifted
    | ScaledRows
    | UnitRows
)
"""Operations on one other source, their ``source``."""

Source = Stored | Packed | Stacked | Factored | Constant | OneOf | Derived
