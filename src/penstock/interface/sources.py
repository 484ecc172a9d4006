"""Where the weights of a plan are in a checkpoint, as data.

A *source* says how a weight is made of a checkpoint's tensors: :class:`Stored` is one of them as it
lies there, and the others take what they are made of apart, together or otherwise. Who declares a
weight (``models/names.py``) writes one; who reads weights (``weights/sources.py``) carries it out;
``plan/shard.py`` wraps it, so that a rank reads its own rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """The tensor ``name`` of a checkpoint, of this shape."""

    name: str
    shape: Shape
    element: Literal["float", "int32", "integer"] = "float"
    """float: any type that models are served from; integer: of 32 or 64 bits."""


class PackedFormat(Protocol):
    """How a quantized matrix is kept in tensors of a checkpoint. Formats are compared."""

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        """The tensors of matrix ``name`` ``[n, k]``."""
        ...

    def optional(self, name: str) -> tuple[str, ...]:
        """Names of further tensors that are read where they are there."""
        ...


@dataclass(frozen=True)
class Packed:
    """A matrix ``[n, k]`` that the checkpoint has quantized, as tensors whose names begin with
    ``name``. It is read as it is quantized."""

    name: str
    shape: Shape
    format: PackedFormat


@dataclass(frozen=True)
class RowsOf:
    """Some rows of a tensor or of a quantized matrix: those of each of ``runs`` (first, end), one
    after another."""

    source: Source
    runs: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> Shape:
        return (sum(end - first for first, end in self.runs), *self.source.shape[1:])


@dataclass(frozen=True)
class Stacked:
    """Tensors of one shape ``[n, k]`` as one of ``[number, n, k]``, such as a layer's experts."""

    sources: tuple[Source, ...]

    @property
    def shape(self) -> Shape:
        return (len(self.sources), *self.sources[0].shape)


@dataclass(frozen=True)
class Transposed:
    """A matrix that is stored as ``[inputs, outputs]``."""

    source: Source

    @property
    def shape(self) -> Shape:
        return self.source.shape[::-1]


@dataclass(frozen=True)
class Shifted:
    """A tensor plus a constant, added in float32; the sum stays in float32."""

    source: Source
    by: float

    @property
    def shape(self) -> Shape:
        return self.source.shape


Source = Stored | Packed | RowsOf | Stacked | Transposed | Shifted


@dataclass(frozen=True)
class Share:
    """The rows of a canonical weight that one of several ranks has: from the first of ``rows`` to
    before the second."""

    name: str
    shape: Shape
    """The shape of the whole weight."""
    rows: tuple[int, int]


@dataclass(frozen=True)
class PlanWeight:
    """A weight that ops of a plan read, and its source."""

    source: Source
    share: Share | None = None
    """The weight that it is some rows of, where a plan is one rank's."""
    checkpoint: Literal["own", "target"] = "own"
    """Whose checkpoint the source is in: the model's own, or that of the model which a head that
    drafts shares the weight with. What the target has quantized is then read as floats, as heads
    have a quantization of their own."""

    @property
    def shape(self) -> Shape:
        """Matrices are ``[outputs, inputs]``."""
        return self.source.shape


def packed(source: Source) -> Iterator[Packed]:
    """The quantized matrices that ``source`` is made of."""
    match source:
        case Packed():
            yield source
        case Stacked(sources):
            for each in sources:
                yield from packed(each)
        case RowsOf(inner) | Transposed(inner) | Shifted(inner):
            yield from packed(inner)


def tensors(source: Source) -> Iterator[Stored]:
    """The tensors of a checkpoint that ``source`` is made of."""
    match source:
        case Stored():
            yield source
        case Packed(name, shape, form):
            yield from form.tensors(name, shape)
        case Stacked(sources):
            for each in sources:
                yield from tensors(each)
        case RowsOf(inner) | Transposed(inner) | Shifted(inner):
            yield from tensors(inner)
