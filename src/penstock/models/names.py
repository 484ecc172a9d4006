"""Maps the canonical names of a model's weights to their sources in a family's checkpoints.

Canonical names are those under which lowering declares weights: ``embed``, ``layers.3.q``,
``layers.3.q.bias``. A :class:`NameMap` has patterns of them, in which ``*`` stands for each number,
and the names in a checkpoint, in which ``*`` stands for the same numbers in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from penstock.errors import ModelError
from penstock.interface.source_walks import factored
from penstock.interface.sources import OneOf, PackedFormat, Shape, Source, Stacked, Stored
from penstock.models.name_forms import Form, Kept, Less, Rows, Stack, Tensor
from penstock.models.packed_matrix import EitherFormat

BIAS = ".bias"
_WHOLE: Final = Rows()

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
    form: Form = _WHOLE
    """How the tensor holds the weight."""
    otherwise: Name | None = None
    """Where the weight is in checkpoints that do not have it here."""


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
    target_names: NameMap | None = None
    """The names of that checkpoint's tensors, if they are not its own."""
    prefix: str = ""
    """What the names of all tensors but the head's begin with, and in files that were saved of the
    model without its head do not."""
    moves: tuple[tuple[str, str], ...] = ()
    """What tensors' names begin with in the checkpoint, and in ``idle``."""
    factors: Mapping[str, Stored] = field(default_factory=dict, hash=False)
    """Tensors that others, by name, are multiplied by."""
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
        pattern = _pattern(name)
        stem = pattern.removesuffix(BIAS)
        entry, bias = self.names.get(pattern), False
        if entry is None and stem != pattern:
            entry, bias = self.names.get(stem), True
        if entry is None:
            raise KeyError(name)
        entries: list[Name] = []
        each: Name | None = entry
        while each is not None:
            entries.append(each)
            each = each.otherwise
        if form is not None:  # which some ways of keeping a weight cannot hold
            entries = [each for each in entries if each.form.holds(form)] or entries
        forms = form.formats if isinstance(form, EitherFormat) else (form,)
        ways = [self._way(name, each, bias, shapes, one) for each in entries for one in forms]
        source = ways[0] if len(ways) == 1 else OneOf(tuple(ways))
        return factored(source, self.factors) if self.factors else source

    def matrices(self, name: str) -> Iterator[str]:
        """The tensors that may hold the canonical matrix ``name``, in the order in which they are
        looked for: those alone that may be quantized."""
        entry = self.names.get(_pattern(name))
        numbers = [part for part in name.split(".") if part.isdigit()]
        while entry is not None:
            if entry.form.keeps_values and "#" not in entry.stored:
                yield _filled(entry.stored, numbers) + entry.suffix
            entry = entry.otherwise

    def module(self, name: str) -> str | None:
        """The module whose tensors the canonical matrix ``name`` is read from, as checkpoints name
        it; of several, such as a layer's experts, the first. None where the map does not have
        it."""
        each = self.names.get(_pattern(name))
        while each is not None and not each.form.keeps_values and each.otherwise is not None:
            each = each.otherwise
        if each is None:
            return None
        numbers = [part for part in name.split(".") if part.isdigit()]
        return _filled(each.stored, numbers).replace("#", "0")

    def is_joined(self, name: str) -> bool:
        """Whether checkpoints keep the canonical matrix ``name`` in one tensor with others."""
        entry = self.names.get(_pattern(name))
        return entry is not None and len(entry.form.of) > 1

    def _way(
        self,
        name: str,
        entry: Name,
        bias: bool,
        shapes: Mapping[str, Shape],
        form: PackedFormat | None,
    ) -> Source:
        """Return the source of a weight by its ``entry``; with ``bias``, of the bias beside it."""
        if form is not None and not entry.form.holds(form):
            why = (
                "experts are in one tensor, for which there is no format of this kind"
                if isinstance(entry.form, Stack)
                else "its values are changed as they are read"
            )
            raise ModelError(
                f"a checkpoint of this architecture cannot have {name} quantized: {why}; take "
                "another format, or the unquantized checkpoint"
            )
        numbers = [part for part in name.split(".") if part.isdigit()]
        where = _filled(entry.stored, numbers)
        if form is None:
            where += BIAS if bias else entry.suffix
        own = BIAS if bias else ""
        group = [_filled(each, numbers) + own for each in entry.form.of] or [name]
        tensor = Tensor(where, tuple(map(shapes.__getitem__, group)), group.index(name), bias, form)
        if "#" not in where:
            return entry.form.source(tensor)
        each = replace(tensor, shapes=tuple(shape[1:] for shape in tensor.shapes))
        many = (replace(each, name=where.replace("#", str(i))) for i in range(tensor.shape[0]))
        return Stacked(tuple(map(entry.form.source, many)))

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

    def form(pattern: str) -> Rows:
        return Rows(patterns, shares, transposed and not pattern.endswith(BIAS))

    return {pattern: Name(stored, form=form(pattern)) for pattern in patterns}


def plain(names: Mapping[str, str]) -> dict[str, Name]:
    """The names of weights that are stored each under its own."""
    return {pattern: Name(stored) for pattern, stored in names.items()}


def less_one(names: Mapping[str, str]) -> dict[str, Name]:
    """The names of weights that are stored less 1."""
    return {pattern: Name(stored, form=Less(1.0)) for pattern, stored in names.items()}


def stacked(
    stored: str,
    *patterns: str,
    suffix: str = "",
    kept: Kept = "rows",
    interleaved: bool = False,
    quantized: bool = False,
) -> dict[str, Name]:
    """The names of weights, one for each expert, that a checkpoint has in one tensor, the rows of
    one weight behind those of another, or in turns."""
    form = Stack(patterns if len(patterns) > 1 else (), kept, interleaved, quantized)
    return {pattern: Name(stored, suffix, form) for pattern in patterns}


def either(first: Mapping[str, Name], *others: Mapping[str, Name]) -> dict[str, Name]:
    """Names of which a checkpoint has those of one mapping, weight by weight."""
    if not others:
        return dict(first)
    rest = either(*others)
    return {pattern: replace(name, otherwise=rest.get(pattern)) for pattern, name in first.items()}


def own_names(shapes: Mapping[str, Shape]) -> dict[str, Source]:
    """The sources of weights that are stored under their canonical names."""
    return {name: Stored(name, shape) for name, shape in shapes.items()}


def _pattern(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _filled(pattern: str, numbers: list[str]) -> str:
    values = iter(numbers)
    return re.sub(r"\*", lambda _: next(values), pattern)
