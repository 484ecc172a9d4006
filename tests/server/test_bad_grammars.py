"""Grammars that cannot be used: each is a 400 that names its field, and good ones go on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from support.http_client import Server

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
HI = [{"role": "user", "content": "a"}]
PATIENCE_S = 100.0
"""Some of these take seconds of a processor to be refused, on a machine that may be busy."""


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def strings(**keywords: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"a": {"type": "string", **keywords}},
        "required": ["a"],
    }


SCHEMAS = {
    "malformed type": {"type": "objekt"},
    "malformed properties": {"type": "object", "properties": 5},
    "malformed required": {"type": "object", "required": "a"},
    "unknown keyword": {"type": "array", "uniqueItems": True},
    "not": {"type": "object", "not": {"required": ["a"]}},
    "missing reference": {"$ref": "#/$defs/a"},
    "remote reference": {"$ref": "http://127.0.0.1:1/schema.json"},
    "file reference": strings(allOf=[{"$ref": "file:///etc/passwd"}]),
    "contradiction": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "empty range": {"type": "integer", "minimum": 5, "maximum": 4},
    "impossible property": strings(enum=[5]),
    "impossible pattern": strings(pattern="^a$", minLength=5),
    "bad pattern": strings(pattern="("),
    "look-ahead": strings(pattern="a(?=b)"),
    "exploding products": {
        "allOf": [{"anyOf": [strings(const="a"), strings(minLength=i)]} for i in range(2, 22)]
    },
    "deep": nested(90),
    "giant": {"enum": ["x" * 140_000]},
}
ENDLESS = {"allOf": [strings(pattern=f".*a.{{{i * 13}}}b.*") for i in range(1, 20)]}
"""It takes longer than anybody waits to find out whether a text satisfies all of these."""
REGEXES = {
    "malformed": "[",
    "look-behind": "(?<=a)b",
    "back-reference": r"(a)\1",
    "many brackets": "(" * 50_000 + ")" * 50_000,
    "giant": "a" * 140_000,
    "null": "a\0",
}
GRAMMARS = {
    "malformed": "start: (",
    "no start": 'begin: "a"',
    "unknown rule": "start: a",
    "bad pattern": "start: /(/",
    "bad schema": 'start: %json {"type": "objekt"}',
    "deep": "start: " + "(" * 5000 + '"a"' + ")" * 5000,
    "giant": "// " + "x" * 140_000 + '\nstart: "a"',
    "blank": " ",
}


def refused(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = server.http.post(path, json={"model": "fake", **body}, timeout=PATIENCE_S)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert len(error["message"]) < 500
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(tool_server: Server, name: str) -> None:
    schema = SCHEMAS[name]
    named = {"name": "it", "schema": schema, "strict": True}
    fields: list[tuple[str, dict[str, Any], str]] = [
        (COMPLETIONS, {"prompt": "a", "guided_json": schema}, "guided_json"),
        (
            CHAT,
            {"messages": HI, "structured_outputs": {"json": schema}},
            "structured_outputs.json",
        ),
        (
            CHAT,
            {"messages": HI, "response_format": {"type": "json_schema", "json_schema": named}},
            "response_format.json_schema.schema",
        ),
        (
            RESPONSES,
            {"input": "a", "text": {"format": {"type": "json_schema", **named}}},
            "text.format.schema",
        ),
    ]
    for path, body, param in fields:
        error = refused(tool_server, path, body)
        assert error["param"] == param
        assert error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize("name", ["malformed type", "not", "remote reference", "missing reference"])
def test_schemas_of_functions(tool_server: Server, name: str) -> None:
    schema = {"type": "object", "properties": {"a": SCHEMAS[name]}}
    good = {"name": "good", "parameters": {"type": "object"}}
    bad = {"name": "bad", "parameters": schema}
    tools: list[dict[str, Any]] = [{"type": "function", "function": each} for each in (good, bad)]
    asked: list[dict[str, Any]] = [{"tool_choice": "required"}]
    asked.append({"tool_choice": {"type": "function", "function": {"name": "bad"}}})
    for fields in asked:
        error = refused(tool_server, CHAT, {"messages": HI, "tools": tools, **fields})
        assert error["param"] == "tools[1].function.parameters"
    strict = [tools[0], {"type": "function", "function": {**bad, "strict": True}}]
    error = refused(tool_server, CHAT, {"messages": HI, "tools": strict})
    assert error["param"] == "tools[1].function.parameters"
    flat = [{"type": "function", **good}, {"type": "function", **bad}]
    error = refused(
        tool_server, RESPONSES, {"input": "a", "tools": flat, "tool_choice": "required"}
    )
    assert error["param"] == "tools[1].parameters"
    # Nothing binds the arguments of these.
    for fields in ({}, {"tool_choice": {"type": "function", "function": {"name": "good"}}}):
        body = {"model": "fake", "messages": HI, "tools": tools, "max_tokens": 1, **fields}
        assert tool_server.post(CHAT, body).status_code == 200


@pytest.mark.parametrize("name", REGEXES)
def test_regular_expressions(server: Server, name: str) -> None:
    body = {"prompt": "a", "guided_regex": REGEXES[name]}
    assert refused(server, COMPLETIONS, body)["param"] == "guided_regex"


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(server: Server, name: str) -> None:
    body = {"prompt": "a", "guided_grammar": GRAMMARS[name]}
    assert refused(server, COMPLETIONS, body)["param"] == "guided_grammar"


@pytest.mark.parametrize("choices", [["a"] * 5000, ["x" * 140_000]], ids=["many", "long"])
def test_choices(server: Server, choices: list[str]) -> None:
    body = {"prompt": "a", "guided_choice": choices}
    assert refused(server, COMPLETIONS, body)["param"] == "guided_choice"


@pytest.mark.slow
def test_a_schema_that_takes_for_ever(server: Server) -> None:
    before = server.http.get("/health").status_code
    error = refused(server, COMPLETIONS, {"prompt": "a", "guided_json": ENDLESS})
    assert error["param"] == "guided_json"
    assert "processor time" in error["message"]
    assert server.http.get("/health").status_code == before


def test_good_requests_beside_bad_ones(server: Server) -> None:
    def body(i: int, **fields: Any) -> dict[str, Any]:
        return {"model": "fake", "prompt": [i + 1], "max_tokens": 40, **fields}

    expected = [server.post(COMPLETIONS, body(i)).json()["choices"][0]["text"] for i in range(6)]
    bad = [{"guided_regex": each} for each in REGEXES.values()]
    bad += [{"guided_json": each} for each in SCHEMAS.values()]

    async def main() -> None:
        async with httpx.AsyncClient(
            base_url=server.url, verify=False, timeout=PATIENCE_S
        ) as client:
            asked = [client.post(COMPLETIONS, json=body(0, **fields)) for fields in bad]
            plain = [client.post(COMPLETIONS, json=body(i)) for i in range(6)]
            bound = client.post(COMPLETIONS, json=body(0, guided_choice=["a", "b"]))
            answers = await asyncio.gather(*asked, *plain, bound)
        assert [answer.status_code for answer in answers] == [400] * len(bad) + [200] * 7
        texts = [answer.json()["choices"][0]["text"] for answer in answers[len(bad) : -1]]
        assert texts == expected

    asyncio.run(main())
    assert server.metric("num_requests_running") == 0
    text = json.dumps({"type": "object"})
    again = server.post(COMPLETIONS, body(0, guided_json=text))
    assert again.status_code == 200
