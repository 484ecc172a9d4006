"""Texts of arguments as JSON, by what their schemas ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Values as templates write them that print Python's."""


def json_value(text: str, schema: object) -> str:
    """The JSON that ``text`` stands for. Where the schema takes texts alone it is one; otherwise it
    is JSON already, or a text if it is none, or if only a text would do."""
    types = types_of(schema)
    as_text = json.dumps(text, ensure_ascii=False)
    if types == {"string"}:
        return as_text
    written = text.strip()
    written = _PYTHON.get(written, written)
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return as_text
    return as_text if "string" in types and not _types(value) & types else written


def text_value(text: str, schema: object) -> str:
    """The JSON of what is said to be a text: it is one, unless the schema takes none."""
    types = types_of(schema)
    if types and "string" not in types:
        return json_value(text, schema)
    return json.dumps(text, ensure_ascii=False)


def types_of(schema: object) -> frozenset[str]:
    """JSON schema's names of the types that ``schema`` may take; empty where it does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    if "const" in schema:
        return _types(schema["const"])
    if isinstance(schema.get("enum"), list):
        return frozenset[str]().union(*map(_types, schema["enum"]))
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset([named])
    if isinstance(named, list):
        return frozenset(each for each in named if isinstance(each, str))
    for alternatives in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(alternatives, list):
            found = list(map(types_of, alternatives))
            return frozenset[str]().union(*found) if all(found) else frozenset()
    return frozenset()


def _types(value: Any) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset(["boolean"])
    if isinstance(value, int):
        return frozenset(["integer", "number"])
    names = {str: "string", float: "number", list: "array", dict: "object", type(None): "null"}
    return frozenset([names[type(value)]])


def _refuse(constant: str) -> NoReturn:
    """NaN and infinities are Python's, not JSON's."""
    raise ValueError(constant)
