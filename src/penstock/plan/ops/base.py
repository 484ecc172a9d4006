"""What all ops share: rows, buffers and the record of an op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, ClassVar, Literal, Self

BufferName = str
WeightName = str
Element = Literal["float32", "bfloat16", "float16", "int32"]
RowBase = Literal["T", "S", "R"]


@dataclass(frozen=True)
class Rows:
    """The symbolic first dimension of a buffer: ``times`` rows for each row of its base.

    Bases are the tokens of a step ("T"), those of them whose logits or hidden states are wanted
    ("S": ``logit_rows``, then ``hidden_rows``), and the first of these, whose logits are ("R").
    ``Rows("T", 8)`` has eight rows for each token, one after another: those of the experts that a
    token is routed to.
    """

    base: RowBase
    times: int = 1

    TOKENS: ClassVar[Rows]
    SELECTED: ClassVar[Rows]
    LOGITS: ClassVar[Rows]

    def count(self, tokens: int, selected: int, logits: int) -> int:
        """The number of rows in a step with this many rows of each base."""
        return self.times * {"T": tokens, "S": selected, "R": logits}[self.base]

    def __str__(self) -> str:
        return self.base if self.times == 1 else f"{self.times}{self.base}"


Rows.TOKENS = Rows("T")
Rows.SELECTED = Rows("S")
Rows.LOGITS = Rows("R")


@dataclass(frozen=True)
class Buffer:
    """A ``[rows, cols]`` row-major array that lives within one step."""

    name: BufferName
    rows: Rows
    cols: int
    element: Element

    @property
    def row_bytes(self) -> int:
        return self.cols * (2 if self.element in ("bfloat16", "float16") else 4)


@dataclass(frozen=True)
class Op:
    """Base. Each class lists its fields that name buffers read and written, and weights."""

    mixes: ClassVar[bool] = False
    """Whether a row of what it writes depends on other tokens of its sequence."""
    _reads: ClassVar[tuple[str, ...]] = ()
    _writes: ClassVar[tuple[str, ...]] = ()
    _weights: ClassVar[tuple[str, ...]] = ()

    @property
    def reads(self) -> tuple[BufferName, ...]:
        """A field may name several."""
        named = (v for f in self._reads if (v := getattr(self, f)) is not None)
        return tuple(chain.from_iterable([v] if isinstance(v, str) else v for v in named))

    @property
    def writes(self) -> tuple[BufferName, ...]:
        return tuple(v for f in self._writes if (v := getattr(self, f)) is not None)

    @property
    def weights(self) -> tuple[WeightName, ...]:
        """Canonical weights this op needs, in the order of its fields."""
        return tuple(v for f in self._weights if (v := getattr(self, f)) is not None)

    def renamed(self, names: Mapping[BufferName, BufferName]) -> Self:
        """The op over other buffers, for those in ``names``."""
        changes: dict[str, Any] = {}
        for field in (*self._reads, *self._writes):
            value: BufferName | tuple[BufferName, ...] | None = getattr(self, field)
            if isinstance(value, tuple):
                changes[field] = tuple(names.get(name, name) for name in value)
            elif value is not None:
                changes[field] = names.get(value, value)
        return replace(self, **changes)

    @property
    def kind(self) -> str:
        return type(self).__name__

    def options(self) -> dict[str, object]:
        """Fields that are neither buffers nor weights; what ``explain`` prints."""
        hidden = {*self._reads, *self._writes, *self._weights, "parts"}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}
