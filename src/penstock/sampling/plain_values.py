"""Python's own values for those of NumPy and others that options are set to."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

PLAIN_TYPES = frozenset({int, float, bool, type(None)})
"""Types of single values that need no conversion."""


def plain(value: Any) -> Any:
    """Return a number, bool or text as Python's own; anything else as it is."""
    if type(value) in PLAIN_TYPES:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        return str(value)
    # NumPy's bool is no number; asked for by name, so that a client need not import NumPy.
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    return value


def plain_tuple(value: Any, one: type[str] | type[int]) -> Any:
    """Return a list, tuple or one-dimensional array as a tuple of plain values.

    A single value of the type ``one`` becomes a tuple of one, and None an empty tuple. Anything
    else is returned as it is, for whoever checks it to refuse.
    """
    if type(value) is tuple and (not value or all(type(v) is one for v in value)):
        return value
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    if type(value).__name__ == "ndarray" and value.ndim == 1:
        return tuple(value.tolist())
    single = plain(value)
    return (single,) if type(single) is one else value


def plain_bias(value: Any) -> Any:
    """Return a mapping as a dict of plain values; anything else as it is."""
    if not isinstance(value, Mapping) or (
        type(value) is dict
        and all(type(k) is int and type(v) in PLAIN_TYPES for k, v in value.items())
    ):
        return value
    return {plain(token): plain(bias) for token, bias in value.items()}
