"""The calls that a request asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.parsing.style import ToolStyle


@dataclass(frozen=True)
class Function:
    """A function that the model may call."""

    name: str  # letters, digits, underscores and dashes
    schema: Mapping[str, Any]
    """JSON schema of its arguments, which are an object."""
    param: str
    """The request field that holds the schema, for error messages."""


@dataclass(frozen=True)
class Calls:
    """Which calls an answer may or must hold."""

    style: ToolStyle
    functions: Sequence[Function]
    forced: bool
    """Whether the answer holds only calls; otherwise text may surround them, or there are none."""
    single: bool
    """Whether at most one call is allowed, which ends the answer."""
