"""The constraint that a request puts on its output, from the fields of both dialects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from penstock.errors import RequestError
from penstock.grammar.notation import MAX_CHARS
from penstock.grammar.spec import GrammarSpec, Kind, text_without
from penstock.server.errors import ApiError
from penstock.server.openai.names import CHAT, Names
from penstock.server.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Sampling,
)
from penstock.server.openai.tools import check_nesting


@dataclass(frozen=True)
class Constraint:
    spec: GrammarSpec
    param: str
    """The request field that holds the constraint."""


def asked_constraint(request: Sampling, names: Names = CHAT) -> Constraint | None:
    """Return the constraint on the answer's content; ``names`` are the client's field names.

    Raises ApiError if there is more than one, or an invalid one.
    """
    found = list(_guided(request))
    if isinstance(request, ChatRequest | CompletionRequest):
        found += _formatted(request, names)
    if len(found) > 1:
        first, second = found[0].param, found[1].param
        raise ApiError(
            400, f"{second}: {first} binds the output already; send one of them", param=second
        )
    return found[0] if found else None


def _guided(request: Sampling) -> Iterator[Constraint]:
    """Return the constraints given under vLLM's names."""
    yield from _by_name(
        "guided_", request.guided_json, request.guided_regex, request.guided_grammar,
        request.guided_choice,
    )  # fmt: skip
    if request.bad_words:
        yield Constraint(text_without(request.bad_words), "bad_words")
    structured = request.structured_outputs
    if structured is None:
        return
    if structured == type(structured)():
        raise ApiError(
            400,
            "structured_outputs must hold one of json, regex, grammar, choice and json_object",
            param="structured_outputs",
        )
    prefix = "structured_outputs."
    if structured.json_object:
        yield Constraint(GrammarSpec(kind="json_object"), f"{prefix}json_object")
    yield from _by_name(
        prefix, structured.json, structured.regex, structured.grammar, structured.choice
    )


def _by_name(
    prefix: str,
    schema: dict[str, object] | str | None,
    regex: str | None,
    grammar: str | None,
    choice: list[str] | None,
) -> Iterator[Constraint]:
    if schema is not None:
        param = f"{prefix}json"
        value = _parsed(schema, param) if isinstance(schema, str) else schema
        yield _schema(value, param)
    texts: list[tuple[Kind, str, str | None]] = [
        ("regex", f"{prefix}regex", regex),
        ("lark", f"{prefix}grammar", grammar),
    ]
    for kind, param, text in texts:
        if text is not None:
            if not text:
                raise ApiError(400, f"{param}: must not be empty", param=param)
            yield Constraint(GrammarSpec(kind=kind, text=text), param)
    if choice is not None:
        param = f"{prefix}choice"
        if not choice or "" in choice:
            why = "must hold at least one text, and none that is empty"
            raise ApiError(400, f"{param}: {why}", param=param)
        text = json.dumps(choice, ensure_ascii=False)
        yield Constraint(GrammarSpec(kind="choice", text=text), param)


def _formatted(request: ChatRequest | CompletionRequest, names: Names) -> Iterator[Constraint]:
    given = request.response_format
    if isinstance(given, JsonObjectFormat):
        yield Constraint(GrammarSpec(kind="json_object"), names.format)
    elif isinstance(given, JsonSchemaFormat):
        yield _schema(given.json_schema.schema, names.schema)


def _parsed(text: str, param: str) -> dict[str, object]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ApiError(400, f"{param}: not JSON: {error}", param=param) from None
    if not isinstance(value, dict):
        raise ApiError(400, f"{param}: must be a JSON schema that is an object", param=param)
    return value


def _schema(value: dict[str, object], param: str) -> Constraint:
    check_nesting(value, param)
    return Constraint(GrammarSpec(kind="json_schema", text=schema_text(value, param)), param)


def schema_text(schema: object, param: str) -> str:
    """A schema as JSON. Raises RequestError, naming the field ``param``, if that is too long.

    A long one is found out by the encoder that takes a tenth of the time, and writes less.
    """
    if len(msgspec.json.encode(schema)) > MAX_CHARS:
        raise RequestError(
            f"{param}: the JSON schema has more than the {MAX_CHARS} characters that it may have; "
            "simplify it",
            param,
        )
    return json.dumps(schema)
