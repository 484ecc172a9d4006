"""Walks over the sources of weights: what they are made of, and the same weight said otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from penstock.interface.sources import (
    Derived,
    Factored,
    OneOf,
    Packed,
    RowsOf,
    RowsOfEach,
    Shape,
    Shifted,
    Source,
    Squeezed,
    Stacked,
    Stored,
    Transposed,
    UnitRows,
)

Runs = tuple[tuple[int, int], ...]
"""Runs of rows (first, end), one after another."""


def packed(source: Source) -> Iterator[Packed]:
    """The quantized matrices that ``source`` is made of."""
    if isinstance(source, Packed):
        yield source
    for each in made_of(source):
        yield from packed(each)


def tensors(source: Source) -> Iterator[Stored]:
    """The tensors of a checkpoint that ``source`` is made of; of several ways, in the first."""
    match source:
        case Stored():
            yield source
        case Packed(name, shape, form):
            yield from form.tensors(name, shape)
    for each in made_of(source):
        yield from tensors(each)


def made_of(source: Source) -> tuple[Source, ...]:
    """The sources that ``source`` is made of; of several ways, the first."""
    if isinstance(source, Derived):
        return (source.source,)
    match source:
        case Stacked(sources):
            return sources
        case Factored(inner, factors):
            return inner, factors
        case OneOf(sources):
            return sources[:1]
    return ()


def rebuilt(source: Source, change: Callable[[Source], Source]) -> Source:
    """``source`` of sources that ``change`` has made of its own: of what :func:`made_of` returns,
    and of all ways of several."""
    if isinstance(source, Derived):
        return replace(source, source=change(source.source))
    match source:
        case Stacked(sources):
            return Stacked(tuple(map(change, sources)))
        case OneOf(sources):
            return OneOf(tuple(map(change, sources)))
        case Factored(inner, factors):
            return Factored(change(inner), change(factors))
    return source


def chosen(source: Source, stored: Mapping[str, Shape]) -> Source:
    """``source`` as a checkpoint with tensors of these shapes has it, without any :class:`OneOf`.

    Where it has none of several ways in full, it is the first whose tensors are there in other
    shapes, the first that it has a tensor of, or else the first.
    """
    if not isinstance(source, OneOf):
        return rebuilt(source, lambda each: chosen(each, stored))

    def rank(way: Source) -> tuple[bool, ...]:
        wanted = list(tensors(way))
        there = [each.name in stored for each in wanted]
        fits = all(stored.get(each.name) == each.shape for each in wanted)
        return fits, all(there), any(there)

    return max(source.sources, key=rank)


def factored(source: Source, factors: Mapping[str, Stored]) -> Source:
    """``source`` with each tensor that has an entry in ``factors``, by its name, multiplied."""
    if isinstance(source, Stored):
        return Factored(source, factors[source.name]) if source.name in factors else source
    return rebuilt(source, lambda each: factored(each, factors))


def rows_pushed_down(source: Source) -> Source:
    """The same weight with rows taken as near to the tensors as can be: what reads it looks at no
    others, and finds :class:`RowsOf` around those sources alone of which rows cannot be made by
    themselves."""
    if isinstance(source, RowsOf):
        down = _pushed_down(source.source, source.runs)  # before what is inside: most may go
        if isinstance(down, RowsOf):
            return RowsOf(rows_pushed_down(down.source), down.runs)
        return rows_pushed_down(down)
    match rebuilt(source, rows_pushed_down):
        case RowsOfEach(Stacked(sources), first, count, 1):
            run = first, first + count
            return Stacked(tuple(rows_pushed_down(RowsOf(each, (run,))) for each in sources))
        case made:
            return made


def _pushed_down(source: Source, runs: Runs) -> Source:
    """``RowsOf(source, runs)`` with the rows taken one step further down, if they can be."""
    match source:
        case RowsOf(inner, outer):
            return _pushed_down(inner, _within(outer, runs))
        case Stacked(sources) if any(first < end for first, end in runs):
            return Stacked(tuple(each for first, end in runs for each in sources[first:end]))
        case Transposed(inner) if len(inner.shape) == 2:  # whose rows are the tensor's columns
            return RowsOf(source, runs)
        case Shifted() | UnitRows() | RowsOfEach() | Squeezed() | Transposed():
            return replace(source, source=RowsOf(source.source, runs))
        case Factored(inner, factors):
            own = factors if math.prod(factors.shape) == 1 else RowsOf(factors, runs)
            return Factored(RowsOf(inner, runs), own)
    return RowsOf(source, runs)


def _within(outer: Runs, runs: Runs) -> Runs:
    """Runs of the rows that ``outer`` leaves, as runs of all rows."""
    result = []
    for first, end in runs:
        position = 0
        for start, stop in outer:
            low = max(first, position)
            high = min(end, position + stop - start)
            if low < high:
                result.append((start + low - position, start + high - position))
            position += stop - start
    return tuple(result) or ((0, 0),)
