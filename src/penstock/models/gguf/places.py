"""Where a new GGUF file gets a model's weights: the inverse of sources, which say where a file has
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelError
from penstock.interface.sources import (
    Flat,
    Logarithm,
    Merged,
    OneOf,
    RowsOf,
    Shape,
    Shifted,
    Source,
    Squeezed,
    Stacked,
    Stored,
    Transposed,
    Unpaired,
)
from penstock.models.names import NameMap

Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Place:
    """The slices of a tensor's first dimension that a weight fills."""

    weight: str
    """Its canonical name."""
    source: Source
    """How it is read from the tensor, where that keeps it in one of several ways the first."""
    runs: Runs | None
    """Runs (first, end) of these slices, in the order of the weight's rows; None: all of them."""

    @property
    def first(self) -> int:
        return 0 if self.runs is None else self.runs[0][0]

    def stored(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """What stands in these slices, one behind the other, so that the weight is read as
        ``values``."""
        return _stored(self.source, values)


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor, and the weights that it is made of, in their order; they fill it."""

    name: str
    shape: Shape
    places: tuple[Place, ...]


def written_tensors(names: NameMap, shapes: Mapping[str, Shape]) -> tuple[WrittenTensor, ...]:
    """The tensors that hold canonical weights of these shapes: where ``names`` knows several ways
    to keep one, the first. Raises ModelError for a weight that they have no name for."""
    found: dict[str, tuple[Shape, list[Place]]] = {}
    for weight in shapes:
        try:
            source = _first_way(names.source(weight, shapes))
        except KeyError as error:
            raise ModelError(f"files have no tensor for the weight {weight}") from error
        stored, runs = _tensor(source)
        shape, places = found.setdefault(stored.name, (stored.shape, []))
        assert shape == stored.shape
        places.append(Place(weight, source, runs))
    tensors = []
    for name, (shape, places) in found.items():
        places.sort(key=lambda place: place.first)
        tensors.append(WrittenTensor(name, shape, tuple(places)))
    return tuple(tensors)


def _first_way(source: Source) -> Source:
    while isinstance(source, OneOf):
        source = source.sources[0]
    return source


def _tensor(source: Source) -> tuple[Stored, Runs | None]:
    """The tensor that a source reads, and which slices of it."""
    runs: Runs | None = None
    while not isinstance(source, Stored):
        match source:
            case RowsOf(Stored() as inner, own):
                source, runs = inner, own
            case Stacked((Stored() as alone,)):  # a matrix of one row, as a vector
                source = alone
            case (
                Unpaired(inner)
                | Shifted(inner)
                | Logarithm(inner)
                | Merged(inner)
                | Transposed(inner)
                | Flat(inner)
                | Squeezed(inner)
            ):
                source = inner
            case _:
                raise NotImplementedError(f"{source}")
    return source, runs


def _stored(source: Source, values: NDArray[np.float32]) -> NDArray[np.float32]:
    match source:
        case Stored() | RowsOf(Stored()):
            return values
        case Stacked((Stored(),)):
            alone: NDArray[np.float32] = values[0]
            return alone
        case Unpaired(inner, heads):
            return _stored(inner, values[_paired(len(values), heads)])
        case Shifted(inner, more):
            return _stored(inner, values - np.float32(more) if more else values)
        case Logarithm(inner):
            return _stored(inner, -np.exp(values))
        case Transposed(inner):
            return _stored(inner, np.swapaxes(values, -1, -2))
        case Merged(inner) | Flat(inner) | Squeezed(inner):
            return _stored(inner, values.reshape(inner.shape))
        case _:
            raise NotImplementedError(f"{source}")


def _paired(rows: int, heads: int) -> NDArray[np.intp]:
    """Where each row of a matrix whose components that rotate together lie side by side is found in
    one where they lie half a head apart."""
    order = np.arange(rows).reshape(heads, 2, -1)
    paired: NDArray[np.intp] = order.transpose(0, 2, 1).reshape(-1)
    return paired
