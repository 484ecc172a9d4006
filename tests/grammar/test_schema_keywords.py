"""Names in a schema that are nearly keywords are refused; others say nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import RequestError
from penstock.grammar.notation import lark_of
from penstock.grammar.schema_keywords import misspelt_keyword
from penstock.grammar.spec import GrammarSpec


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"type": "integer", "maximun": 3}, ("maximun", "maximum")),
        ({"uniqueitems": True}, ("uniqueitems", "uniqueItems")),
        ({"additionalproperties": False}, ("additionalproperties", "additionalProperties")),
        ({"minlength": 5}, ("minlength", "minLength")),
        ({"Required": ["a"]}, ("Required", "required")),
        ({"properties": {"a": {"enums": [1]}}}, ("enums", "enum")),
        ({"anyOf": [{"type": "null"}, {"propertys": {}}]}, ("propertys", "properties")),
        ({"items": {"items": [{"additional_properties": False}]}},
         ("additional_properties", "additionalProperties")),
        ({"$defs": {"a": {"patern": "x"}}}, ("patern", "pattern")),
    ],
)  # fmt: skip
def test_what_was_meant_is_named(schema: dict[str, Any], found: tuple[str, str]) -> None:
    assert misspelt_keyword(schema) == found
    with pytest.raises(RequestError, match=f"did you mean '{found[1]}'") as refused:
        lark_of(GrammarSpec(kind="json_schema", text=json.dumps(schema)), "guided_json")
    assert refused.value.param == "guided_json"


@pytest.mark.parametrize(
    "schema",
    [
        {"x-order": 1, "example": 3, "nullable": True, "foo": 5, "propertyOrdering": ["a"]},
        {"properties": {"maximun": {"type": "integer"}, "Required": {}, "typ": {}}},
        {"enum": [{"maximun": 1}], "const": {"patern": 1}, "default": {"typ": 2}},
        {"title": "A", "description": "B", "$comment": "C", "examples": [{"itms": 1}]},
        {"discriminator": {"propertyName": "kind", "mapping": {"a": "#/$defs/a"}}},
        {"x" * 5000: 1},
    ],
)
def test_what_is_no_keyword_says_nothing(schema: dict[str, Any]) -> None:
    assert misspelt_keyword(schema) is None


def test_deep_schemas_are_looked_at_without_recursion() -> None:
    schema: dict[str, Any] = {"maximun": 1}
    for _ in range(100_000):
        schema = {"not": schema}
    assert misspelt_keyword(schema) == ("maximun", "maximum")
