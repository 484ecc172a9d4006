"""Arguments that are not written as JSON: text between tags, and Python literals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.parsed_answers import parse

from penstock.parsing.calls.tagged_values import json_value


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", '"5"'),
        ({"type": "string"}, ' a\n"b" ', '" a\\n\\"b\\" "'),
        ({"type": "integer"}, " 5 ", "5"),
        ({"type": "integer"}, "five", '"five"'),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "false", "false"),
        ({"type": ["string", "null"]}, "None", "null"),
        ({"type": ["string", "null"]}, "5", '"5"'),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "5", "5"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]}, "5", "5"),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"const": 1}, "1", "1"),
        ({"type": "object"}, '{"a": [1]}', '{"a": [1]}'),
        ({}, '{"a"', '"{\\"a\\""'),
        ({}, "[" * 100_000, json.dumps("[" * 100_000)),
        (True, "word", '"word"'),
    ],
)
def test_tagged_values(schema: Any, text: str, value: str) -> None:
    assert json_value(text, schema) == value


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'it\\'s \"so\"'", 'it\'s "so"'),
        ('"\\ud83d\\ude00 \\x41\\n\\q"', "\U0001f600 A\n\\q"),
        ('"\\ud83d"', "\ufffd"),
        ("{'a': [True, {}], 'b': -0.5,}", {"a": [True, {}], "b": -0.5}),
        ("'line\nbreak ) ]'", "line\nbreak ) ]"),
    ],
)
def test_python_literals(literal: str, value: Any) -> None:
    (call,) = parse(list(f"[f(a={literal})]"), "pythonic")[2]
    assert call[0] == "f"
    assert json.loads(call[1]) == {"a": value}
