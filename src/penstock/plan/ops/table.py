"""Tables of functions by the type of op that each handles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias, TypeVar, cast

from penstock.plan.ops.base import Op

C = TypeVar("C")
O = TypeVar("O", bound=Op)  # noqa: E741

OpTable: TypeAlias = Mapping[type[Op], Callable[[C, Op], None]]
"""Functions that take a context of type ``C`` and an op, by the op's type."""


def handles(kind: type[O], function: Callable[[C, O], None]) -> OpTable[C]:
    """Return the table that has ``function`` for ops of type ``kind`` alone."""
    # A function is only looked up by the type of op that it takes.
    return {kind: cast("Callable[[C, Op], None]", function)}


def op_table(*parts: OpTable[C]) -> OpTable[C]:
    """Return one table of all ``parts``; a later one overrides those before it."""
    return MappingProxyType({kind: each for part in parts for kind, each in part.items()})
