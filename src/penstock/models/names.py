"""Maps the canonical names of a model's weights to their sources in a family's checkpoints.

Canonical names are those under which lowering declares weights: ``embed``, ``layers.3.q``,
``layers.3.q.bias``. A :class:`NameMap` has patterns of them, in which ``*`` stands for each number,
and the names in a checkpoint, in which ``*`` stands for the same numbers in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from penstock.errors import ModelError
from penstock.interface.sources import (
    MXFP4_BLOCK,
    Flat,
    Mxfp4,
    OneOf,
    Packed,
    PackedFormat,
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

BIAS = ".bias"

Published = Literal["model", "heads"]
"""Kinds of checkpoints: whole models, and heads that draft."""


@dataclass(frozen=True)
class Name:
    """Where weights of one pattern are.

    ``stored`` is the tensor's name without ``suffix``. A bias whose pattern is not in the map is
    beside its matrix, with ``.bias`` for the suffix. Where ``#`` is in it, there are several
    tensors, numbered from 0, and the weight is all of them stacked.
    """

    stored: str
    suffix: str = ".weight"
    fused: tuple[str, ...] = ()
    """Patterns of the weights whose rows lie in the tensor one after another, in this order; this
    one is among them. Empty: the tensor is this weight alone."""
    shares: int = 1
    """Number of equal shares into which the rows of each fused weight are cut. The tensor has the
    first share of each, then the second of each, and so on."""
    transposed: bool = False
    """Whether the matrix is stored as ``[inputs, outputs]``. Its bias is as any other."""
    shift: float = 0.0
    """Added to the stored values, in float32."""
    stacked: bool = False
    """Whether the tensor is a stack of matrices, or of biases, one for each expert. Fused are then
    the rows of each matrix."""
    interleaved: bool = False
    """Whether rows of the weights that are fused in a stack take turns."""
    mxfp4: bool = False
    """Whether a stack is in MXFP4, as tensors ``..._blocks`` and ``..._scales``. Matrices whose
    columns are not in whole blocks never are."""
    flat: bool = False
    """Whether a vector is stored as a matrix of one row."""
    squeezed: bool = False
    """Whether a matrix ``[n, k]``, but not its bias, is stored as ``[n, 1, k]``."""
    scalar: bool = False
    """Whether a single number is stored without a dimension."""
    otherwise: Name | None = None
    """Where the weight is in checkpoints that do not have it here."""
    unit_rows: bool = False
    """Whether each row of the matrix, which is never quantized, is divided by its length."""

    @property
    def changes_values(self) -> bool:
        """Whether a weight is not what is stored, but for its shape and the place of its rows."""
        return self.unit_rows or self.shift != 0.0 or self.stacked or self.flat or self.squeezed


@dataclass(frozen=True)
class NameMap:
    """The names of all weights of a family."""

    names: Mapping[str, Name] = field(hash=False)
    idle: str = r"(?!)"
    """Regular expression of tensors that checkpoints may have and that no model reads."""
    published: Published = "model"
    """The files and the spellings in which such checkpoints are published."""
    target: Mapping[str, Source] = field(default_factory=dict, hash=False)
    """Weights that a head takes from the checkpoint of the model that it drafts for, by canonical
    name, and their sources there."""
    prefix: str = ""
    """What the names of all tensors but the head's begin with, and in files that were saved of the
    model without its head do not."""
    moves: tuple[tuple[str, str], ...] = ()
    """What tensors' names begin with in the checkpoint, and in ``idle``."""
    others: str = r"(?!)"
    """Regular expression of tensors of other parts of a larger model, as the checkpoint names
    them."""

    def source(
        self, name: str, shapes: Mapping[str, Shape], form: PackedFormat | None = None
    ) -> Source:
        """The source of the canonical weight ``name``, of the shape that it has in ``shapes``.

        ``shapes`` has all weights of the model: where tensors are fused, those before it tell which
        rows are its own. ``form``: what the matrix is stored in, where it is quantized; as all
        formats keep ``[n, k]``, it is then never transposed. Raises KeyError where the map does not
        have it.
        """
        pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
        stem = pattern.removesuffix(BIAS)
        entry, bias = self.names.get(pattern), False
        if entry is None and stem != pattern:
            entry, bias = self.names.get(stem), True
        if entry is None:
            raise KeyError(name)
        ways: list[Source] = []
        each: Name | None = entry
        while each is not None:
            if not each.mxfp4 or shapes[name][-1] % MXFP4_BLOCK == 0:
                ways.append(self._way(name, each, bias, shapes, form))
            each = each.otherwise
        return ways[0] if len(ways) == 1 else OneOf(tuple(ways))

    def _way(
        self,
        name: str,
        entry: Name,
        bias: bool,
        shapes: Mapping[str, Shape],
        form: PackedFormat | None,
    ) -> Source:
        """Return the source of a weight by its ``entry``; with ``bias``, of the bias beside it."""
        if form is not None and entry.changes_values:
            raise ModelError(
                f"a checkpoint of this architecture cannot have {name} quantized: its values are "
                "changed as they are read; use the unquantized checkpoint this one was made from"
            )
        numbers = [part for part in name.split(".") if part.isdigit()]
        where = _filled(entry.stored, numbers)
        if form is None:
            where += BIAS if bias else entry.suffix
        group = [_filled(each, numbers) + (BIAS if bias else "") for each in entry.fused] or [name]
        rows = [shapes[each] for each in group]
        place = group.index(name)
        if entry.squeezed and not bias:
            (own,) = rows
            source: Source = Squeezed(Stored(where, (own[0], 1, *own[1:])))
        elif entry.flat:
            source = Flat(Stored(where, (1, *rows[place])))
        elif entry.scalar:
            source = Stacked((Stored(where, ()),))
        elif entry.stacked:
            source = _of_stack(where, rows, place, entry, bias)
        elif "#" in where:
            each = [shape[1:] for shape in rows]
            names = [where.replace("#", str(i)) for i in range(rows[place][0])]
            parts = [_part(one, each, place, entry, bias, form) for one in names]
            source = Stacked(tuple(parts))
        else:
            source = _part(where, rows, place, entry, bias, form)
        if entry.unit_rows and not bias:
            source = UnitRows(source)
        return Shifted(source, entry.shift) if entry.shift and not bias else source

    def moved(self, prefixes: Mapping[str, str]) -> NameMap:
        """The map of a checkpoint whose tensors' names begin otherwise: each of ``prefixes`` with
        what stands in its place. Idle tensors are moved, too."""

        def moved(name: Name) -> Name:
            old = next((each for each in prefixes if name.stored.startswith(each)), "")
            return replace(
                name,
                stored=prefixes.get(old, "") + name.stored.removeprefix(old),
                otherwise=None if name.otherwise is None else moved(name.otherwise),
            )

        names = {pattern: moved(name) for pattern, name in self.names.items()}
        moves = tuple((new, old) for old, new in prefixes.items())
        return replace(self, names=names, prefix="", moves=moves)

    def completed(self, tensors: Collection[str]) -> dict[str, str]:
        """Return a checkpoint's tensors by the names that this map has for them."""
        head = self.names["head"].stored if "head" in self.names else ""
        lacking = not any(name.startswith(self.prefix) for name in tensors)
        return {
            self.prefix + name if lacking and not name.startswith(f"{head}.") else name: name
            for name in tensors
        }

    def is_idle(self, tensor: str) -> bool:
        """Whether a checkpoint's tensor is one that files carry and no model reads."""
        if re.fullmatch(self.others, tensor) is not None:
            return True
        for new, old in self.moves:
            if tensor.startswith(new):
                tensor = old + tensor.removeprefix(new)
                break
        return re.fullmatch(self.idle, tensor) is not None


def fused(
    stored: str, *patterns: str, shares: int = 1, transposed: bool = False
) -> dict[str, Name]:
    """The names of weights whose rows lie in one tensor, one after another or share by share."""
    return {
        pattern: Name(
            stored,
            fused=patterns,
            shares=shares,
            transposed=transposed and not pattern.endswith(BIAS),
        )
        for pattern in patterns
    }


def plain(names: Mapping[str, str]) -> dict[str, Name]:
    """The names of weights that are stored each under its own."""
    return {pattern: Name(stored) for pattern, stored in names.items()}


def stacked(
    stored: str,
    *patterns: str,
    suffix: str = "",
    transposed: bool = False,
    interleaved: bool = False,
    mxfp4: bool = False,
) -> dict[str, Name]:
    """The names of weights, one for each expert, that a checkpoint has in one tensor, the rows of
    one weight behind those of another, or in turns."""
    several = patterns if len(patterns) > 1 else ()
    return {
        pattern: Name(
            stored,
            suffix,
            several,
            transposed=transposed,
            stacked=True,
            interleaved=interleaved,
            mxfp4=mxfp4,
        )
        for pattern in patterns
    }


def either(first: Mapping[str, Name], *others: Mapping[str, Name]) -> dict[str, Name]:
    """Names of which a checkpoint has those of one mapping, weight by weight."""
    if not others:
        return dict(first)
    rest = either(*others)
    return {pattern: replace(name, otherwise=rest.get(pattern)) for pattern, name in first.items()}


def own_names(shapes: Mapping[str, Shape]) -> dict[str, Source]:
    """The sources of weights that are stored under their canonical names."""
    return {name: Stored(name, shape) for name, shape in shapes.items()}


def _filled(pattern: str, numbers: list[str]) -> str:
    values = iter(numbers)
    return re.sub(r"\*", lambda _: next(values), pattern)


def _of_stack(where: str, rows: list[Shape], place: int, entry: Name, bias: bool) -> Source:
    """Return the rows of weight ``place`` in each matrix of the stack in tensor ``where``."""
    number, _, *columns = rows[place]
    whole: Shape = (number, sum(shape[1] for shape in rows), *columns)
    source: Source
    if entry.mxfp4:
        source = _mxfp4(where, whole)
    elif entry.transposed and columns:
        source = Transposed(Stored(where, (*whole[:-2], whole[-1], whole[-2])))
    else:
        source = Stored(where, whole)
    if len(rows) == 1:
        return source
    first, step = sum(shape[1] for shape in rows[:place]), 1
    if entry.interleaved:
        first, step = place, len(rows)
    return RowsOfEach(source, first, rows[place][1], step)


def _mxfp4(where: str, whole: Shape) -> Mxfp4:
    *stack, columns = whole
    blocks = (*stack, columns // MXFP4_BLOCK)
    return Mxfp4(
        Stored(f"{where}_blocks", (*blocks, 16), "uint8"),
        Stored(f"{where}_scales", blocks, "uint8"),
    )


def _part(
    where: str, rows: list[Shape], place: int, entry: Name, bias: bool, form: PackedFormat | None
) -> Source:
    """Return the rows of weight ``place`` among those that are fused in tensor ``where``."""
    whole: Shape = (sum(shape[0] for shape in rows), *rows[place][1:])
    source: Source
    if form is not None:
        source = Packed(where, whole, form)
    elif entry.transposed and not bias:
        source = Transposed(Stored(where, whole[::-1]))
    else:
        source = Stored(where, whole)
    if len(rows) == 1:
        return source
    each = whole[0] // entry.shares
    first = sum(shape[0] for shape in rows[:place]) // entry.shares
    size = rows[place][0] // entry.shares
    return RowsOf(
        source, tuple((i * each + first, i * each + first + size) for i in range(entry.shares))
    )
