"""What sources of weights are made of: walks over them, and sources made of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from penstock.interface.sources import (
    Derived,
    Factored,
    Flat,
    Logarithm,
    Merged,
    Mxfp4,
    OneOf,
    Packed,
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


def packed(source: Source) -> Iterator[Packed]:
    """The quantized matrices that ``source`` is made of."""
    if isinstance(source, Packed):
        yield source
    for each in _made_of(source):
        yield from packed(each)


def tensors(source: Source) -> Iterator[Stored]:
    """The tensors of a checkpoint that ``source`` is made of; of several ways, in the first."""
    match source:
        case Stored():
            yield source
        case Packed(name, shape, form):
            yield from form.tensors(name, shape)
    for each in _made_of(source):
        yield from tensors(each)


def _made_of(source: Source) -> tuple[Source, ...]:
    """The sources that ``source`` is made of; of several ways, the first."""
    if isinstance(source, Derived):
        return (source.source,)
    match source:
        case Stacked(sources):
            return sources
        case Mxfp4(blocks, scales):
            return blocks, scales
        case Factored(inner, factors):
            return inner, factors
        case OneOf(sources):
            return sources[:1]
    return ()


def chosen(source: Source, stored: Mapping[str, Shape]) -> Source:
    """``source`` as a checkpoint with tensors of these shapes has it, without any :class:`OneOf`.

    Where it has none of several ways in full, it is the first whose tensors are there in other
    shapes, the first that it has a tensor of, or else the first.
    """
    match source:
        case OneOf(sources):

            def rank(way: Source) -> tuple[bool, ...]:
                wanted = list(tensors(way))
                there = [each.name in stored for each in wanted]
                fits = all(stored.get(each.name) == each.shape for each in wanted)
                return fits, all(there), any(there)

            return max(sources, key=rank)
        case Stacked(sources):
            return Stacked(tuple(chosen(each, stored) for each in sources))
    if isinstance(source, Derived):
        return replace(source, source=chosen(source.source, stored))
    return source


def factored(source: Source, factors: Mapping[str, Stored]) -> Source:
    """``source`` with each tensor that has an entry in ``factors``, by its name, multiplied."""
    match source:
        case Stored(name):
            return Factored(source, factors[name]) if name in factors else source
        case Stacked(sources):
            return Stacked(tuple(factored(each, factors) for each in sources))
        case OneOf(sources):
            return OneOf(tuple(factored(each, factors) for each in sources))
        case (
            RowsOf()
            | RowsOfEach()
            | Transposed()
            | Unpaired()
            | Flat()
            | Squeezed()
            | Merged()
            | Logarithm()
            | Shifted()
            | ScaledRows()
            | UnitRows()
        ):
            return replace(source, source=factored(source.source, factors))
    return source
