"""How a tensor of a checkpoint holds a weight: whole, fused with others, transposed, shifted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from penstock.interface.sources import (
    Constant,
    Flat,
    Logarithm,
    Merged,
    Packed,
    PackedFormat,
    RowsOf,
    RowsOfEach,
    ScaledRows,
    Shape,
    Shifted,
    Source,
    Squeezed,
    Stacked,
    Stored,
    Transposed,
    UnitRows,
    Unpaired,
)

Kept = Literal["rows", "columns"]
"""How the matrices of a stack are kept."""


@dataclass(frozen=True)
class Tensor:
    """A tensor, and which of the weights in it is asked for."""

    name: str
    shapes: tuple[Shape, ...]
    """The shapes of all weights that lie in it, in their order."""
    place: int
    """Which of them."""
    bias: bool = False
    """Whether these are the biases beside the matrices that the form is of."""
    packed: PackedFormat | None = None
    """What the matrix is quantized in, if it is."""

    @property
    def shape(self) -> Shape:
        return self.shapes[self.place]


class Form(ABC):
    """How a tensor holds a weight. :meth:`source` makes the weight's source of it."""

    of: tuple[str, ...] = ()
    """Patterns of the weights that lie in the tensor; empty: it is one weight alone."""

    @property
    def keeps_values(self) -> bool:
        """Whether a weight is what is stored, but for its shape and the place of its rows, so that
        it may be stored quantized."""
        return False

    def holds(self, form: PackedFormat) -> bool:
        """Whether it may be stored so."""
        return self.keeps_values

    @abstractmethod
    def source(self, tensor: Tensor) -> Source:
        """Where the weight is."""


@dataclass(frozen=True)
class Rows(Form):
    """A matrix, a vector, or rows of several that lie one after another."""

    of: tuple[str, ...] = ()
    shares: int = 1
    """Number of equal shares into which the rows of each weight are cut. The tensor has the first
    share of each, then the second of each, and so on."""
    transposed: bool = False
    """Whether a matrix is stored as ``[inputs, outputs]``. Its bias is as any other."""

    @property
    def keeps_values(self) -> bool:
        return True

    def source(self, tensor: Tensor) -> Source:
        shapes = tensor.shapes
        whole: Shape = (sum(shape[0] for shape in shapes), *tensor.shape[1:])
        source: Source
        if tensor.packed is not None:
            source = Packed(tensor.name, whole, tensor.packed)
        elif self.transposed and not tensor.bias:
            source = Transposed(Stored(tensor.name, whole[::-1]))
        else:
            source = Stored(tensor.name, whole)
        if len(shapes) == 1:
            return source
        each, size = whole[0] // self.shares, tensor.shape[0] // self.shares
        first = sum(shape[0] for shape in shapes[: tensor.place]) // self.shares
        starts = (i * each + first for i in range(self.shares))
        return RowsOf(source, tuple((start, start + size) for start in starts))


@dataclass(frozen=True)
class Stack(Form):
    """Matrices of all experts, or their biases, in one tensor; of several weights, the rows of each
    matrix one after another."""

    of: tuple[str, ...] = ()
    kept: Kept = "rows"
    """As ``[outputs, inputs]``, or as ``[inputs, outputs]`` where they are not quantized."""
    interleaved: bool = False
    """Whether rows of the weights take turns."""
    quantized: bool = False
    """Whether checkpoints may have such stacks quantized."""

    @property
    def keeps_values(self) -> bool:
        return self.quantized

    def holds(self, form: PackedFormat) -> bool:
        return self.quantized and form.stacks

    def source(self, tensor: Tensor) -> Source:
        shapes = tensor.shapes
        number, count, *columns = tensor.shape
        whole: Shape = (number, sum(shape[1] for shape in shapes), *columns)
        source: Source
        if tensor.packed is not None:
            source = Packed(tensor.name, whole, tensor.packed)
        elif self.kept == "columns" and columns:
            source = Transposed(Stored(tensor.name, (*whole[:-2], whole[-1], whole[-2])))
        else:
            source = Stored(tensor.name, whole)
        if len(shapes) == 1:
            return source
        if self.interleaved:
            return RowsOfEach(source, tensor.place, count, len(shapes))
        return RowsOfEach(source, sum(shape[1] for shape in shapes[: tensor.place]), count)


@dataclass(frozen=True)
class Paired(Form):
    """Rows of a matrix of heads, or of its bias, in which components that rotate together lie side
    by side, as GGUF has those of Llama."""

    heads: int
    rows: Rows = field(default_factory=Rows)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", self.rows.of)

    @property
    def keeps_values(self) -> bool:
        return True

    def source(self, tensor: Tensor) -> Source:
        return Unpaired(self.rows.source(tensor), self.heads)


@dataclass(frozen=True)
class OfHeads(Form):
    """A matrix of rows of heads that is stored as a stack of the heads' matrices."""

    heads: int
    transposed: bool = False
    """Whether each is stored as ``[inputs, outputs]``."""

    def source(self, tensor: Tensor) -> Source:
        rows, columns = tensor.shape
        each = rows // self.heads
        if self.transposed:
            return Merged(Transposed(Stored(tensor.name, (self.heads, columns, each))))
        return Merged(Stored(tensor.name, (self.heads, each, columns)))


@dataclass(frozen=True)
class AsVector(Form):
    """A matrix of one row that is stored as a vector."""

    def source(self, tensor: Tensor) -> Source:
        return Stacked((Stored(tensor.name, tensor.shape[1:]),))


@dataclass(frozen=True)
class OneRow(Form):
    """A vector that is stored as a matrix of one row."""

    def source(self, tensor: Tensor) -> Source:
        return Flat(Stored(tensor.name, (1, *tensor.shape)))


@dataclass(frozen=True)
class OneColumn(Form):
    """A matrix ``[n, k]``, but not its bias, that is stored as ``[n, 1, k]``."""

    def source(self, tensor: Tensor) -> Source:
        if tensor.bias:
            return Rows().source(tensor)
        return Squeezed(Stored(tensor.name, (tensor.shape[0], 1, *tensor.shape[1:])))


@dataclass(frozen=True)
class Scalar(Form):
    """A single number that is stored without a dimension."""

    def source(self, tensor: Tensor) -> Source:
        return Stacked((Stored(tensor.name, ()),))


@dataclass(frozen=True)
class FromMatrix(Form):
    """A vector, but no bias, that is stored as a matrix, row by row: of so many columns, or with
    ``rows`` of so many rows."""

    number: int
    rows: bool = False

    def source(self, tensor: Tensor) -> Source:
        (size,) = tensor.shape
        rows = self.number if self.rows else size // self.number
        return Merged(Stored(tensor.name, (rows, size // rows)))


@dataclass(frozen=True)
class Decay(Form):
    """A vector of logarithms of rates that is stored as the rates, less than 0."""

    column: bool = False
    """Whether it is stored as a matrix of one column."""

    def source(self, tensor: Tensor) -> Source:
        form = FromMatrix(1) if self.column else Rows()
        return Logarithm(form.source(tensor))


@dataclass(frozen=True)
class Told(Form):
    """A constant for each layer, which all components of the weight have. No tensor has it; what
    stands for the tensor's name ends with the layer's number."""

    numbers: tuple[float, ...]

    def source(self, tensor: Tensor) -> Source:
        return Constant(self.numbers[int(tensor.name.rpartition(".")[2])], tensor.shape)


@dataclass(frozen=True)
class Less(Form):
    """A weight that is stored less a constant, which is added in float32, as Gemma stores its norms
    less 1; its bias is as any other."""

    by: float

    def source(self, tensor: Tensor) -> Source:
        source = Rows().source(tensor)
        return source if tensor.bias else Shifted(source, self.by)


@dataclass(frozen=True)
class Times(Form):
    """A weight, but not its bias, whose rows are multiplied, run after run of so many rows, before
    they are used."""

    form: Form
    factors: tuple[tuple[int, float], ...]

    def source(self, tensor: Tensor) -> Source:
        source = self.form.source(tensor)
        return source if tensor.bias else ScaledRows(source, self.factors)


@dataclass(frozen=True)
class OfAnyLength(Form):
    """A matrix whose rows are normalized to length 1 as they are read. It is never quantized."""

    def source(self, tensor: Tensor) -> Source:
        source = Rows().source(tensor)
        return source if tensor.bias else UnitRows(source)
