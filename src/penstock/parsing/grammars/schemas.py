"""What grammars read of JSON schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

AS_TEMPLATES_WRITE: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""llguidance options for JSON in calls: spaced as models were trained, without endless white
space."""

ANY_KEY: Final = "[A-Za-z_][A-Za-z0-9_-]{0,63}"
"""Arguments that a schema does not name."""

_DEFINITIONS: Final = ("$defs", "definitions")


def definitions_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas that others may refer to."""
    return {key: schema[key] for key in _DEFINITIONS if key in schema}


def properties_of(schema: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The schemas of an object's properties, those of no schema last, and which are required."""
    named, needed = schema.get("properties"), schema.get("required")
    properties = dict(named) if isinstance(named, Mapping) else {}
    required = (
        {key for key in needed if isinstance(key, str)} if isinstance(needed, list) else set()
    )
    return {**properties, **{key: {} for key in sorted(required - set(properties))}}, required


def count_of(schema: Mapping[str, Any], keyword: str) -> int | None:
    """What ``schema`` says of a number of characters or items; None where it says nothing."""
    found = schema.get(keyword)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def bound_value(schema: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """``schema`` of one value, as llguidance takes it."""
    of_value = {**schema, **definitions} if isinstance(schema, Mapping) else {}
    return {**of_value, "x-guidance": AS_TEMPLATES_WRITE}


def in_commas(required: list[str], optional: list[str], comma: str) -> str:
    """The rules of members one after the other, the required ones first, with ``comma``, in the
    grammar's notation, between two."""
    if required:
        needed = f" {comma} ".join(required)
        return " ".join([needed, *(f"({comma} {rule})?" for rule in optional)])
    first = [  # whichever comes first has no comma before it
        " ".join([rule, *(f"({comma} {later})?" for later in optional[at + 1 :])])
        for at, rule in enumerate(optional)
    ]
    return f"({' | '.join(first)})?" if first else ""
