"""What the OpenAPI document says of the table of fields: what of it a body may hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from penstock.server.fields.places import Place
from penstock.server.fields.rules import EVERY_NAME, Rule, Schema

_NULL: Schema = {"type": "null"}


def document_fields(
    body: type[msgspec.Struct], rules: Iterable[Rule], components: Mapping[str, Schema]
) -> None:
    """Add to ``components``, by the names of structs, what ``body`` may hold by ``rules`` beside
    their fields.

    Structs that several endpoints share have the same rules at each.
    """
    _document(Place.of(body, rules), components)


def _document(place: Place, components: Mapping[str, Schema]) -> None:
    for name in place.structs:
        _extend(components[name], place)
    for inner in place.inner.values():
        _document(inner, components)


def _extend(schema: Schema, place: Place) -> None:
    properties = schema.setdefault("properties", {})
    required = set(schema.get("required", ()))
    if "model" in required and "model" in place.names:
        required.remove("model")  # there is but one
        schema["required"] = sorted(required)
        if not required:
            del schema["required"]
    for name, known in list(properties.items()):
        if name not in required:
            properties[name] = _or(known, _NULL)
    for name, inner in place.inner.items():
        if name not in place.names:
            properties[name] = {"anyOf": [_NULL, _of_table(inner)]}
    for name, rule in place.rules.items():
        if name != EVERY_NAME:
            properties[name] = _with_rule(properties.get(name), rule, properties)
    schema["additionalProperties"] = True if EVERY_NAME in place.rules else _NULL


def _of_table(place: Place) -> Schema:
    schema: Schema = {"type": "object"}
    _extend(schema, place)
    return schema


def _with_rule(known: Schema | None, rule: Rule, properties: Mapping[str, Any]) -> Schema:
    """The schema of a field: what its struct takes, and what the rule does."""
    if rule.alias:
        schema: Schema = properties[rule.alias]
        return schema
    if rule.of_elements:
        assert known is not None
        alternatives = [
            {**each, "items": _or(each["items"], *rule.allowed)} if "items" in each else each
            for each in known.get("anyOf", [known])
        ]
        return {**known, "anyOf": alternatives}
    return _or({"enum": [None]} if known is None else known, *rule.allowed)


def _or(schema: Schema, *others: Schema) -> Schema:
    """``schema`` or one of the others; as it is where it takes them already."""
    if {} in others:
        return {"description": "Any JSON."}
    alternatives: list[Schema] = schema.get("anyOf", [schema])
    more = [each for each in others if each not in alternatives and not _takes(schema, each)]
    if not more:
        return schema
    rest = {name: value for name, value in schema.items() if name in ("description", "default")}
    bare = [{k: v for k, v in each.items() if k not in rest} for each in alternatives]
    return {**rest, "anyOf": [*bare, *more]}


def _takes(schema: Schema, other: Schema) -> bool:
    """Whether ``schema`` plainly takes all of ``other``."""
    if other == _NULL and None in schema.get("enum", ()):
        return True
    return not {"type", "enum", "const", "anyOf", "$ref", "allOf"} & schema.keys()
