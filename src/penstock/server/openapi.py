"""``GET /openapi.json``: the routes of this server, from the structs that they read and write."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from starlette.requests import Request

from penstock.server.errors import ApiError, ErrorResponse
from penstock.server.fields.rules import Rule
from penstock.server.open_requests import REQUEST_ID, TIMEOUT
from penstock.server.sse import LINES

Schema = dict[str, Any]
Access = Literal["public", "user", "operator", "admin"]
"""Who may ask: everybody, holders of a key where keys are needed, the holder of the admin key where
there are any keys, the holder of the admin key."""

_REF = "#/components/schemas/{name}"
_PLACES = re.compile(r"\{(\w+)(?::\w+)?\}")
"""The parameters of a path pattern, by their names."""


@dataclass(frozen=True)
class Endpoint:
    """One route: its handler, and how the OpenAPI document describes it."""

    method: str
    path: str
    """Path pattern, in Starlette's form."""
    handler: Callable[[Request], Awaitable[Any]]
    summary: str
    answer: type[msgspec.Struct] | None
    """Struct of the JSON response; None means ``text``, or nothing but events."""
    body: type[msgspec.Struct] | None = None
    event: type[msgspec.Struct] | None = None
    """Struct of the data of one server-sent event: of those that a body can ask for, or, without
    ``answer``, of the endpoint's only answer; that has an end where there is a body."""
    stream: type[msgspec.Struct] | None = None
    """Struct of a line, where the body can ask for a stream of lines of JSON."""
    lines: type[msgspec.Struct] | None = None
    """Struct of a line, where ``format=jsonl`` asks for lines of JSON in place of the answer."""
    query: Mapping[str, Schema] = field(default_factory=dict)
    """Query parameters and the schemas of their values."""
    access: Access = "user"
    works: bool = False
    """Whether the endpoint asks the engine for tokens, and so accepts a deadline."""
    rules: tuple[Rule, ...] = ()
    """How fields of the body are treated that its struct has not."""
    error: type[msgspec.Struct] = ErrorResponse
    """Struct of the JSON of a response that refuses a request."""
    error_body: Callable[[ApiError], bytes] = ApiError.json
    """Writes that JSON."""
    text: str = "text/plain"
    """The media type of a response that is neither JSON nor events."""
    listed: bool = False
    """Whether the JSON response is a list of such answers."""
    form: Mapping[str, Schema] = field(default_factory=dict)
    """The parts of a body that is a form (multipart/form-data), all of which must be there."""


def document(
    endpoints: Sequence[Endpoint],
    version: str,
    keys_needed: bool,
    any_keys: bool,
    describe: Callable[[Mapping[str, Schema], Collection[str]], None],
) -> Schema:
    """The OpenAPI 3.1 document.

    ``keys_needed``: users need a key; ``any_keys``: somebody has one. ``describe`` adds to the
    schemas what a dialect takes beyond the types of its structs; it is given all of them, and the
    names of those in bodies.
    """
    structs: dict[type, None] = {ErrorResponse: None}
    for endpoint in endpoints:
        for kind in (
            *(endpoint.body, endpoint.answer, endpoint.event, endpoint.stream),
            *(endpoint.lines, endpoint.error),
        ):
            if kind is not None:
                structs[kind] = None
    _, components = msgspec.json.schema_components(
        structs, schema_hook=_anything, ref_template=_REF
    )
    bodies = [endpoint.body for endpoint in endpoints if endpoint.body is not None]
    _, taken = msgspec.json.schema_components(bodies, schema_hook=_anything, ref_template=_REF)
    describe(components, taken)
    paths: dict[str, dict[str, Schema]] = {}
    for endpoint in endpoints:
        path = endpoint.path.replace(":path}", "}")
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(
            endpoint, keys_needed, any_keys
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "description": description}
                for name, description in (
                    ("user", "An API key of this server; x-api-key and api-key have it too."),
                    ("admin", "The admin key of this server."),
                )
            },
        },
    }


def _anything(kind: type) -> Schema:
    if kind is object:
        return {"description": "Any JSON."}
    raise NotImplementedError(kind)


def _operation(endpoint: Endpoint, keys_needed: bool, any_keys: bool) -> Schema:
    operation: Schema = {
        "summary": endpoint.summary,
        "operationId": endpoint.handler.__name__,
        "responses": {
            "200": _answer(endpoint),
            "4XX": _json("The request cannot be served as asked.", endpoint.error),
            "5XX": _json("The server cannot serve it now.", endpoint.error),
        },
    }
    parameters: list[Schema] = [
        {"name": REQUEST_ID, "in": "header", "schema": {"type": "string"}},
    ]
    if endpoint.works:
        seconds = {"type": "number", "exclusiveMinimum": 0}
        parameters.append({"name": TIMEOUT, "in": "header", "schema": seconds})
    parameters += [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PLACES.findall(endpoint.path)
    ]
    parameters += [
        {"name": name, "in": "query", "schema": schema} for name, schema in endpoint.query.items()
    ]
    operation["parameters"] = parameters
    if endpoint.body is not None:
        required = any(field.required for field in msgspec.structs.fields(endpoint.body))
        content = {"application/json": {"schema": _reference(endpoint.body)}}
        operation["requestBody"] = {"required": required, "content": content}
    elif endpoint.form:
        schema = {
            "type": "object",
            "properties": dict(endpoint.form),
            "required": list(endpoint.form),
            "additionalProperties": False,
        }
        content = {"multipart/form-data": {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": content}
    if endpoint.access == "admin":
        operation["security"] = [{"admin": []}]
    elif endpoint.access == "user" and keys_needed:
        operation["security"] = [{"user": []}, {"admin": []}]
    elif endpoint.access == "operator" and any_keys:
        operation["security"] = [{"admin": []}]
    return operation


def _answer(endpoint: Endpoint) -> Schema:
    if endpoint.answer is None and endpoint.event is not None and endpoint.body is not None:
        content = {"text/event-stream": {"schema": _event(endpoint.event, endpoint.error)}}
        return {"description": "The answer, as events.", "content": content}
    if endpoint.answer is None and endpoint.event is not None:
        content = {"text/event-stream": {"schema": _endless(endpoint.event, endpoint.error)}}
        until = "" if endpoint.works else ", until the client leaves or the server stops"
        return {
            "description": f"Events{until}.",
            "content": content,
        }
    if endpoint.answer is None:
        content = {endpoint.text: {"schema": {"type": "string"}}}
        return {"description": "The answer.", "content": content}
    answer = _json("The answer.", endpoint.answer)
    if endpoint.listed:
        json = answer["content"]["application/json"]
        json["schema"] = {"type": "array", "minItems": 1, "items": json["schema"]}
    if endpoint.event is not None:
        answer["content"]["text/event-stream"] = {"schema": _event(endpoint.event, endpoint.error)}
    if endpoint.stream is not None:
        schema = _lines(endpoint.stream, "With stream=true")
        answer["content"][LINES] = {"schema": schema}
    if endpoint.lines is not None:
        schema = _lines(endpoint.lines, "With format=jsonl")
        answer["content"]["application/jsonl"] = {"schema": schema}
    return answer


def _lines(kind: type[msgspec.Struct], when: str) -> Schema:
    # Neither OpenAPI before 3.2 nor JSON Schema can say what each line of a text is.
    return {
        "type": "string",
        "description": f"{when}: lines, each a {kind.__name__} in JSON.",
    }


def _event(kind: type[msgspec.Struct], error: type[msgspec.Struct]) -> Schema:
    """Return the schema of one server-sent event, as OpenAPI before 3.2 has none for a whole
    stream."""
    of_json = {"anyOf": [_reference(kind), _reference(error)]}
    return {
        "type": "object",
        "description": "Where a stream is asked for: events whose data is a "
        f"{kind.__name__} in JSON, or an {error.__name__}, which is the last; of completions and "
        "chats that are complete the last is [DONE].",
        "properties": {
            "event": {"type": "string"},
            "data": {
                "type": "string",
                "if": {"const": "[DONE]"},
                "else": {"contentMediaType": "application/json", "contentSchema": of_json},
            },
        },
        "required": ["data"],
    }


def _endless(kind: type[msgspec.Struct], error: type[msgspec.Struct]) -> Schema:
    """Return the schema of one event of a stream that is an endpoint's only answer."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_reference(kind), _reference(error)]},
    }
    return {
        "type": "object",
        "description": f"Events whose data is a {kind.__name__} in JSON, or an {error.__name__}, "
        "which is the last.",
        "properties": {"data": data},
        "required": ["data"],
    }


def _json(description: str, kind: type[msgspec.Struct]) -> Schema:
    content = {"application/json": {"schema": _reference(kind)}}
    return {"description": description, "content": content}


def _reference(kind: type[msgspec.Struct]) -> Schema:
    return {"$ref": _REF.format(name=kind.__name__)}
