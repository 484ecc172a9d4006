"""Where a new GGUF file gets a model's weights: the inverse of sources, which say where a file has
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.interface.sources import (
    OneOf,
    RowsOf,
    Shape,
    Shifted,
    Source,
    Stacked,
    Stored,
    Unpaired,
)
from penstock.models.names import NameMap


@dataclass(frozen=True)
class Place:
    """Slices of a tensor's first dimension that a weight fills."""

    weight: str
    """Its canonical name."""
    first: int
    """The first of these slices."""
    paired_heads: int | None
    """The number of heads that it has rows of, whose components that rotate together are put side
    by side; None: rows stay in their order."""
    less: float
    """What is taken off each value, in float32."""


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor, and the weights that it is made of, in their order; they fill it."""

    name: str
    shape: Shape
    places: tuple[Place, ...]


def written_tensors(names: NameMap, shapes: Mapping[str, Shape]) -> tuple[WrittenTensor, ...]:
    """The tensors that hold canonical weights of these shapes: where ``names`` knows several ways
    to keep one, the first."""
    found: dict[str, tuple[Shape, list[Place]]] = {}
    for weight in shapes:
        stored, place = _placed(weight, names.source(weight, shapes))
        shape, places = found.setdefault(stored.name, (stored.shape, []))
        assert shape == stored.shape
        places.append(place)
    tensors = []
    for name, (shape, places) in found.items():
        places.sort(key=lambda place: place.first)
        tensors.append(WrittenTensor(name, shape, tuple(places)))
    return tuple(tensors)


def _placed(weight: str, source: Source) -> tuple[Stored, Place]:
    first, less = 0, 0.0
    heads: int | None = None
    while not isinstance(source, Stored):
        match source:
            case OneOf((preferred, *_)):
                source = preferred
            case RowsOf(inner, ((start, _),)):
                source, first = inner, start
            case Unpaired(inner, number):
                source, heads = inner, number
            case Shifted(inner, more):
                source, less = inner, more
            case Stacked((Stored() as alone,)):  # a matrix of one row, as a vector
                source = alone
            case _:
                raise NotImplementedError(f"{weight} is {source}")
    return source, Place(weight, first, heads, less)
