"""Keywords of JSON schemas, and those that are misspelt.

A schema may hold names that no standard has (``x-order``, ``example``, ``nullable``): they say
nothing about which values are valid. A name that is nearly a keyword was meant to, and llguidance
would pass over it like over the others.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

_SCHEMA: Final = (
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
"""Keywords whose value is a schema, or a list of them."""
_SCHEMAS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED_SCHEMAS: Final = (
    *("$defs", "definitions", "dependencies", "dependentSchemas"),
    *("patternProperties", "properties"),
)
"""Keywords whose value has a schema for each of its names."""
_OTHERS: Final = (
    *("$anchor", "$comment", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor"),
    *("$recursiveRef", "$ref", "$schema", "$vocabulary", "id"),
    *("const", "enum", "type", "format", "pattern", "multipleOf"),
    *("contentEncoding", "contentMediaType", "contentSchema"),
    *("default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"),
    *("dependentRequired", "required", "uniqueItems"),
    *("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"),
    *("maxContains", "maxItems", "maxLength", "maxProperties"),
    *("minContains", "minItems", "minLength", "minProperties"),
)
_KNOWN: Final = frozenset((*_SCHEMA, *_SCHEMAS, *_NAMED_SCHEMAS, *_OTHERS))
_ANNOTATIONS: Final = frozenset(("discriminator", "example", "externalDocs", "nullable", "xml"))
"""What OpenAPI adds, and what people write beside the standard; none restricts a value here."""
_BY_LOWER: Final = {name.lower(): name for name in _KNOWN}
_LIKENESS = 0.8


def misspelt_keyword(schema: dict[str, Any]) -> tuple[str, str] | None:
    """A name in a schema, or in one within it, that is nearly a keyword, and that keyword.

    Without recursion. Values that are no schemas where one belongs are left to others.
    """
    level: list[Any] = [schema]
    while level:
        below: list[Any] = []
        for each in level:
            if not isinstance(each, dict):
                continue
            for name, value in each.items():
                if name in _SCHEMA or name in _SCHEMAS:
                    below += value if isinstance(value, list) else [value]
                elif name in _NAMED_SCHEMAS:
                    below += value.values() if isinstance(value, dict) else ()
                elif (keyword := _nearest(name)) is not None:
                    return name, keyword
        level = below
    return None


def _nearest(name: str) -> str | None:
    if name in _KNOWN or name in _ANNOTATIONS or name.startswith(("x-", "x_")):
        return None
    lower = name.lower()
    found = _BY_LOWER.get(lower)
    if found is None and len(name) <= 30:
        near = get_close_matches(lower, _BY_LOWER, n=1, cutoff=_LIKENESS)
        found = _BY_LOWER[near[0]] if near else None
    return found
