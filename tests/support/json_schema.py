"""Checks a JSON value against the part of JSON Schema that OpenAPI documents here are made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
_KNOWN = {"title", "description", "default", "type", "properties", "required", "items", "anyOf"}
_KNOWN |= {"additionalProperties", "enum", "const", "$ref", "allOf", "if", "then", "not"}
_KNOWN |= {"minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "pattern"}
_KNOWN |= {"minItems", "maxItems", "propertyNames", "contains"}
_KNOWN |= {"contentEncoding"}  # what a text holds besides
_KNOWN |= {"discriminator"}  # which of anyOf it is is found by trying them


def fault(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> str | None:
    """Where and why ``value`` is not of ``schema``; None if it is."""
    assert set(schema) <= _KNOWN, set(schema) - _KNOWN
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return fault(value, target, root, at)
    if "anyOf" in schema:
        found = [fault(value, each, root, at) for each in schema["anyOf"]]
        return None if None in found else f"{at}: {found}"
    rules = list(schema.get("allOf", ()))
    if "if" in schema and fault(value, schema["if"], root, at) is None:
        rules.append(schema.get("then", {}))
    for rule in rules:
        if (broken := fault(value, rule, root, at)) is not None:
            return broken
    if "not" in schema and fault(value, schema["not"], root, at) is None:
        return f"{at}: {value!r} is {schema['not']}"
    if "const" in schema and value != schema["const"]:
        return f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at}: {value!r} is not in {schema['enum']}"
    kind = schema.get("type")
    if kind is not None:
        kinds = [kind] if isinstance(kind, str) else kind
        if not any(_is_of(value, each) for each in kinds):
            return f"{at}: {value!r} is no {kind}"
    if (bound := _broken_bound(value, schema)) is not None:
        return f"{at}: {value!r} breaks {bound} {schema[bound]}"
    if isinstance(value, list):
        if "contains" in schema and all(fault(x, schema["contains"], root) for x in value):
            return f"{at}: none is {schema['contains']}"
        items = schema.get("items", {})
        faults = [fault(each, items, root, f"{at}[{i}]") for i, each in enumerate(value)]
        return next((each for each in faults if each is not None), None)
    if isinstance(value, dict):
        return _fault_of_object(value, schema, root, at)
    return None


def _is_of(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _broken_bound(value: Any, schema: dict[str, Any]) -> str | None:
    """The keyword that bounds a number, a text or an array and does not hold."""
    holds: dict[str, Callable[[Any], bool]] = {}
    if isinstance(value, int | float) and not isinstance(value, bool):
        holds = {
            "minimum": lambda low: value >= low,
            "exclusiveMinimum": lambda low: value > low,
            "maximum": lambda high: value <= high,
        }
    elif isinstance(value, str):
        holds = {
            "minLength": len(value).__ge__,
            "maxLength": len(value).__le__,
            "pattern": lambda pattern: re.search(pattern, value) is not None,
        }
    elif isinstance(value, list):
        holds = {"minItems": len(value).__ge__, "maxItems": len(value).__le__}
    broken = [name for name, check in holds.items() if name in schema and not check(schema[name])]
    return broken[0] if broken else None


def _fault_of_object(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str
) -> str | None:
    missing = set(schema.get("required", ())) - set(value)
    if missing:
        return f"{at}: {missing} missing"
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    names = schema.get("propertyNames", {})
    for key, each in value.items():
        if (found := fault(key, names, root, f"{at}: the key")) is not None:
            return found
        if key in properties:
            found = fault(each, properties[key], root, f"{at}.{key}")
        elif others is False:
            found = f"{at}.{key} is unknown"
        else:
            found = None if others is True else fault(each, others, root, f"{at}.{key}")
        if found is not None:
            return found
    return None
