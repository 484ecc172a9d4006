"""Where matrices that are to be quantized lie in a checkpoint in floats.

A reader of the checkpoint that is written looks for a matrix under the name of its module, as
``[n, k]``. In floats it may lie there transposed, or be one of a stack of experts' matrices. So the
sources of a weight in both are gone through side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.errors import ModelError
from penstock.interface.source_walks import made_of, packed, rebuilt, tensors
from penstock.interface.sources import (
    Flat,
    OneOf,
    Packed,
    RowsOf,
    Shape,
    Source,
    Stacked,
    Stored,
    Transposed,
)


def way_with(source: Source, stored: Mapping[str, Shape]) -> Source:
    """``source``, of a quantized weight, without any :class:`OneOf`: of several ways the one whose
    matrices have tensors in floats, of the names and shapes ``stored``, or else the first."""
    if not isinstance(source, OneOf):
        return rebuilt(source, lambda each: way_with(each, stored))

    def is_there(way: Source) -> bool:
        return all(f"{matrix.name}.weight" in stored for matrix in packed(way))

    return way_with(max(source.sources, key=is_there), stored)


def matched(quantized: Source, floats: Source) -> Iterator[tuple[Packed, Source]]:
    """The quantized matrices that ``quantized`` is made of, each with what it is in ``floats``, a
    source of the same weight.

    Raises ModelError where a matrix is not there by itself.
    """
    if isinstance(quantized, Packed):
        if quantized.shape != floats.shape or len(quantized.shape) != 2:
            raise ModelError(_apart(quantized))
        yield quantized, floats
    elif isinstance(quantized, Stacked) and not isinstance(floats, Stacked):
        for i, each in enumerate(quantized.sources):
            yield from matched(each, Flat(RowsOf(floats, ((i, i + 1),))))
    elif isinstance(quantized, Stacked) or type(quantized) is type(floats):
        for pair in zip(made_of(quantized), made_of(floats), strict=True):
            yield from matched(*pair)
    else:
        for matrix in packed(quantized):
            raise ModelError(_apart(matrix))


def _apart(matrix: Packed) -> str:
    return (
        f"{matrix.name} is stored together with other matrices, in a way that is not quantized "
        "yet; take another --method, or another model"
    )


def in_floats(quantized: Source) -> Source:
    """``quantized`` with tensors of floats in the place of its matrices: their modules' names are
    those of the tensors."""
    if isinstance(quantized, Packed):
        return Stored(quantized.name, quantized.shape)
    return rebuilt(quantized, in_floats)


def transposed(source: Source) -> Iterator[str]:
    """The tensors that ``source`` reads transposed."""
    if isinstance(source, Transposed):
        yield from (each.name for each in tensors(source))
    for each in made_of(source):
        yield from transposed(each)
