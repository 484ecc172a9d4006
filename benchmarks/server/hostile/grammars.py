"""Schemas and grammars that are deep, circular, ambiguous or large."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from hostile.case import Case, posted

Schema = dict[str, Any]


def cases(model: str) -> Iterator[Case]:
    """Each text by each way in which a request may bring it, at two lengths."""
    for scale in (1, 10):
        for case in _scaled(model, scale):
            yield replace(case, name=f"{case.name}, {scale}x")


def _scaled(model: str, scale: int) -> Iterator[Case]:
    """``scale`` multiplies lengths that overflow the stack of a parser that recurses."""
    for name, schema in schemas(scale):
        for way, body in _schema_ways(schema).items():
            yield posted(f"{name} as {way}", *_request(model, way, body))
    for name, text in larks(scale):
        yield posted(f"{name} as guided_grammar", *_request(model, "", {"guided_grammar": text}))
    for name, text in expressions(scale):
        yield posted(f"{name} as guided_regex", *_request(model, "", {"guided_regex": text}))
    for name, choices in (
        ("many choices", [f"choice {i}" for i in range(2000 * scale)]),
        ("long choices", ["x" * 1000 * scale for _ in range(20)]),
    ):
        yield posted(f"{name} as guided_choice", *_request(model, "", {"guided_choice": choices}))


def schemas(scale: int) -> Iterator[tuple[str, Schema]]:
    wrap: dict[str, tuple[int, Callable[[Schema], Schema]]] = {
        "items": (1400, lambda ref: {"type": "array", "items": ref}),
        "properties": (1300, lambda ref: {"type": "object", "properties": {"a": ref}}),
        "anyOf": (2500, lambda ref: {"anyOf": [ref, {"type": "null"}]}),
        "allOf": (2500, lambda ref: {"allOf": [ref]}),
        "oneOf": (2500, lambda ref: {"oneOf": [ref]}),
        "prefixItems": (1400, lambda ref: {"type": "array", "prefixItems": [ref]}),
        "additionalProperties": (
            1400,
            lambda ref: {"type": "object", "additionalProperties": ref},
        ),
        "plain references": (3600, lambda ref: ref),
    }
    for name, (length, make) in wrap.items():
        yield f"chain of {name}", _chain(length * scale, make)
    yield "circle of references", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    circle = {"allOf": [{"$ref": "#/$defs/b"}]}, {"anyOf": [{"$ref": "#/$defs/a"}]}
    yield (
        "circle through allOf",
        {"$ref": "#/$defs/a", "$defs": {"a": circle[0], "b": circle[1]}},
    )
    nested: Schema = {"type": "null"}
    for _ in range(50 * scale):
        nested = {"type": "array", "items": nested}
    yield "nested arrays", nested
    patterns = [{"pattern": f"^(a|b)*a(a|b){{{i}}}$"} for i in range(10, 10 + scale)]
    yield "patterns that must all match", {"type": "string", "allOf": patterns}


def larks(scale: int) -> Iterator[tuple[str, str]]:
    def chain(length: int, form: str) -> str:
        return "\n".join(form.format(i, i + 1) for i in range(length))

    yield "chain of rules", f'start: r0\n{chain(3000 * scale, "r{0}: r{1}")}\nr{3000 * scale}: "a"'
    yield (
        "chain of terminals",
        f'start: T0\n{chain(6000 * scale, "T{0}: T{1}")}\nT{6000 * scale}: "a"',
    )
    wrapped = _chain(2500 * scale, lambda ref: {"anyOf": [ref]})
    yield "chain within %json", f"start: %json {json.dumps(wrapped)}"
    yield "brackets", f'start: {"(" * 3000 * scale}"a"{")" * 3000 * scale}'
    yield "a rule that is itself", "start: start"
    yield "left recursion", 'start: start start | "a" | ""'
    yield "ambiguity", "start: a a a a a a a a\na: b*\nb: /[a-z ]+/ | /[a-z]*/ | /.+/"
    yield "a token that is not there", "start: <|nothing|> <[99999999]>"
    yield "nested repeats", 'start: a{1,900}\na: b{1,900}\nb: "x"{1,900}'
    yield "optional rules", "start: " + "x? " * 500 * scale + '\nx: "a" | "b"'


def expressions(scale: int) -> Iterator[tuple[str, str]]:
    yield "brackets", "(" * 3000 * scale + "a" + ")" * 3000 * scale
    yield "repeats of repeats", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"
    yield "an alternative of many", "|".join(f"word{i}" for i in range(3000 * scale))
    yield "a look into the future", f"(a|b)*a(a|b){{{12 * scale}}}"


def _chain(length: int, make: Callable[[Schema], Schema]) -> Schema:
    definitions = {f"d{i}": make({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    definitions[f"d{length}"] = {"type": "null"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _schema_ways(schema: Schema) -> dict[str, dict[str, Any]]:
    named = {"name": "answer", "schema": schema}
    function = {"name": "act", "parameters": schema, "strict": True}
    return {
        "response_format": {"response_format": {"type": "json_schema", "json_schema": named}},
        "guided_json": {"guided_json": schema},
        "forced tool": {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": "required",
        },
        "text.format": {"text": {"format": {"type": "json_schema", **named}}},
        "structured_outputs": {"structured_outputs": {"json": schema}},
        "Lark": {"guided_grammar": f"start: %json {json.dumps(schema)}"},
    }


def _request(model: str, way: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if way == "text.format":
        return "/v1/responses", {
            "model": model,
            "input": "a",
            "max_output_tokens": 16,
            **fields,
        }
    messages = [{"role": "user", "content": "a"}]
    return "/v1/chat/completions", {
        "model": model,
        "messages": messages,
        "max_tokens": 16,
        **fields,
    }
