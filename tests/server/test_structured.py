"""What a request says that its output must be, and what of it reaches the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.http_client import Server

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": SCHEMA}}

GUIDED: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"guided_json": SCHEMA}, {"kind": "json_schema", "text": json.dumps(SCHEMA)}),
    ({"guided_json": json.dumps(SCHEMA)}, {"kind": "json_schema", "text": json.dumps(SCHEMA)}),
    ({"guided_regex": "[a-z]/+"}, {"kind": "regex", "text": "[a-z]/+"}),
    ({"guided_grammar": 'start: "a"'}, {"kind": "lark", "text": 'start: "a"'}),
    ({"guided_choice": ["yes", "nö"]}, {"kind": "choice", "text": '["yes", "nö"]'}),
    (
        {"structured_outputs": {"json": SCHEMA}},
        {"kind": "json_schema", "text": json.dumps(SCHEMA)},
    ),
    ({"structured_outputs": {"regex": "a"}}, {"kind": "regex", "text": "a"}),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, {"kind": "lark", "text": 'start: "a"'}),
    ({"structured_outputs": {"choice": ["a"]}}, {"kind": "choice", "text": '["a"]'}),
    ({"structured_outputs": {"json_object": True}}, {"kind": "json_object", "text": ""}),
    (
        {"bad_words": ["b"]},
        {"kind": "lark", "text": "start: TEXT\nTEXT: /(?s:.*)/ & ~/(?s:.*)(b)(?s:.*)/\n"},
    ),
]
FORMATS: list[tuple[dict[str, Any], dict[str, str] | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, {"kind": "json_object", "text": ""}),
    ({"response_format": FORMAT}, {"kind": "json_schema", "text": json.dumps(SCHEMA)}),
    ({"response_format": {"type": "text"}, "guided_regex": "a"}, {"kind": "regex", "text": "a"}),
    ({"guided_regex": None, "structured_outputs": None}, None),
]


def body(path: str, **fields: Any) -> dict[str, Any]:
    """One that the fake core answers with the constraint that it was given."""
    asked = (
        {"prompt": "a"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "a"}]}
    )
    return {"model": "fake", "max_tokens": 400, "cache_salt": "tell grammar", **asked, **fields}


@pytest.mark.parametrize(
    ("path", "fields", "grammar"),
    [
        *((path, *case) for path in (COMPLETIONS, CHAT) for case in GUIDED),
        *((path, *case) for path in (COMPLETIONS, CHAT) for case in FORMATS),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_engine_is_told(
    server: Server, path: str, fields: dict[str, Any], grammar: dict[str, str] | None
) -> None:
    response = server.post(path, body(path, **fields))
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    assert json.loads(text) == grammar


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        # More than one
        (COMPLETIONS, {"guided_json": {}, "guided_regex": "a"}, "guided_regex", "guided_json"),
        (
            CHAT,
            {"guided_choice": ["a"], "response_format": FORMAT},
            "response_format.json_schema.schema",
            "guided_choice",
        ),
        (
            CHAT,
            {"guided_grammar": "start: A", "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "guided_grammar",
        ),
        (
            CHAT,
            {"structured_outputs": {"regex": "a", "json_object": True}},
            "structured_outputs.regex",
            "structured_outputs.json_object",
        ),
        (CHAT, {"bad_words": ["a"], "guided_regex": "a"}, "bad_words", "guided_regex binds"),
        # None
        (CHAT, {"structured_outputs": {}}, "structured_outputs", "one of json"),
        (CHAT, {"guided_choice": []}, "guided_choice", "at least one"),
        (CHAT, {"guided_choice": ["a", ""]}, "guided_choice", "empty"),
        (COMPLETIONS, {"guided_regex": ""}, "guided_regex", "empty"),
        (COMPLETIONS, {"guided_grammar": ""}, "guided_grammar", "empty"),
        # Of a wrong kind
        (COMPLETIONS, {"guided_json": "{"}, "guided_json", "not JSON"),
        (COMPLETIONS, {"guided_json": "[]"}, "guided_json", "object"),
        (COMPLETIONS, {"guided_json": "\ud800"}, None, "not valid JSON"),
        (COMPLETIONS, {"guided_json": 5}, "guided_json", "got int"),
        (COMPLETIONS, {"guided_regex": ["a"]}, "guided_regex", "got array"),
        (COMPLETIONS, {"guided_choice": "a"}, "guided_choice", "got str"),
        (COMPLETIONS, {"guided_choice": [1]}, "guided_choice[0]", "got int"),
        (COMPLETIONS, {"guided_patience": 1}, "guided_patience", "unknown"),
        (
            COMPLETIONS,
            {"structured_outputs": {"json": 5}},
            "structured_outputs.json",
            "got int",
        ),
        (
            COMPLETIONS,
            {"structured_outputs": {"whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "unknown",
        ),
        (CHAT, {"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        (CHAT, {"response_format": {}}, "response_format.type", "required"),
        (CHAT, {"response_format": "json_object"}, "response_format", "got str"),
        (
            CHAT,
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "required",
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "required",
        ),
        (
            CHAT,
            {"response_format": {**FORMAT, "colour": 1}},
            "response_format.colour",
            "unknown",
        ),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_is_no_constraint(
    server: Server, path: str, fields: dict[str, Any], param: str | None, words: str
) -> None:
    text = json.dumps(body(path, **fields)).encode()
    for stream in (b"false", b"true"):
        response = server.post(path, text[:-1] + b', "stream": ' + stream + b"}")
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param, error
        assert words in error["message"]
        assert len(error["message"]) < 500


def test_deep_schemas_are_refused(server: Server) -> None:
    deep = '{"items":' * 150 + "{}" + "}" * 150
    for fields in ({"guided_json": json.loads(deep)}, {"guided_json": deep}):
        response = server.post(COMPLETIONS, body(COMPLETIONS, **fields))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "guided_json"
        assert "deep" in response.json()["error"]["message"]
