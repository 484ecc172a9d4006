"""Adds the bounds of a body's values to the OpenAPI document.

The bounds are those of the handlers, from the same constants; what the model decides (its name, its
vocabulary, its context) is included. Rules over several fields are included where a
reader looks for them; the sum of prompt and output, for one, is left to the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.engine.ipc.wire import ModelFacts
from penstock.sampling.ranges import MAX_STOP_CHARS, MAX_STOPS, RANGES, Range
from penstock.server.logs import LEVELS
from penstock.server.openai.embeddings import MAX_INPUTS
from penstock.server.openai.field_table import rules_of
from penstock.server.openai.paths import CHAT
from penstock.server.openai.prompts import MAX_PROMPTS
from penstock.server.openai.responses.protocol import LOGPROBS

Schema = dict[str, Any]
Keywords = Mapping[str, Schema]
"""JSON Schema's keywords, by the type whose values they bound."""

_INT64 = 2**63 - 1


def bound(schemas: Mapping[str, Schema], model: ModelFacts, best_priority: int) -> None:
    """Add to the schemas of bodies and of what they hold, by name, what ``model`` takes.

    ``best_priority``: the lowest that anyone may ask for.
    """
    fields = _fields(model)
    fields["priority"] = {"integer": {"minimum": best_priority, "maximum": _INT64}}
    for name, schema in schemas.items():
        properties = schema.get("properties", {})
        for field, keywords in {**fields, **_OF_ONE.get(name, {})}.items():
            if field in properties:
                _apply(properties[field], keywords)
        if name in _RULES:
            schema["allOf"] = _RULES[name]
    for name in ("EmbeddingRequest", "PoolingRequest"):
        if name in schemas:
            properties = schemas[name]["properties"]
            properties["input"] = _prompt(model.lengths.longest_input, model, MAX_INPUTS)
    if "CompletionRequest" in schemas:
        properties = schemas["CompletionRequest"]["properties"]
        properties["prompt"] = _prompt(model.lengths.longest_prompt, model, MAX_PROMPTS)
        properties["max_tokens"]["anyOf"][0]["minimum"] = 0  # with echo: the prompt alone
    if "Message" in schemas:
        properties = schemas["Message"]["properties"]
        properties["content"] = _content(properties["content"])


def _fields(model: ModelFacts) -> dict[str, Keywords]:
    """Return the bounds of each field by name; a field has the same bounds in every body."""
    token = _token(model)
    output = {"integer": {"minimum": 1, "maximum": model.lengths.longest_output}}
    fields = {name: _range(allowed) for name, allowed in RANGES.items()}
    stop = {"minLength": 1, "maxLength": MAX_STOP_CHARS}
    stops = {"maxItems": MAX_STOPS, "items": {"type": "string", **stop}}
    (bias,) = _range(RANGES["logit_bias"]).values()
    (cut,) = fields["truncate_prompt_tokens"].values()
    digits = {"pattern": "^[0-9]+$", "maxLength": len(str(model.vocab_size - 1))}
    return {
        **fields,
        **({} if model.max_loras else {"model": {"string": {"enum": [model.served_model_name]}}}),
        "max_tokens": output,
        "max_completion_tokens": output,
        "max_output_tokens": output,
        "max_new_tokens": output,
        "best_of": fields["n"],
        "top_logprobs": fields["logprobs"],
        "top_n_tokens": fields["logprobs"],
        "truncate": {"integer": {"minimum": 1, "maximum": _INT64}},
        "logit_bias": {
            "object": {
                "propertyNames": digits,
                "additionalProperties": {"type": "number", **bias},
            }
        },
        "stop": {"string": stop, "array": stops},
        "stop_sequences": {"array": stops},
        "bad_words": {"array": stops},
        "allowed_token_ids": {"array": {"minItems": 1, "items": token}},
        "truncate_prompt_tokens": {"integer": {**cut, "not": {"const": 0}}},
        "stop_token_ids": {"array": {"maxItems": MAX_STOPS, "items": token}},
        "messages": {"array": {"minItems": 1}},
        "tokens": {"array": {"items": token}},
    }


_DIMENSIONS: Keywords = {"integer": {"minimum": 1}}
_TEXTS: Keywords = {"array": {"minItems": 1, "maxItems": MAX_INPUTS - 1}}
_LLAMA: Mapping[str, Keywords] = {
    # What is less than 0 means the same there as 0.
    "temperature": {"number": {"maximum": RANGES["temperature"].high}},
    "top_k": {"integer": {"maximum": _INT64}},
}
_OF_ONE: Mapping[str, Mapping[str, Keywords]] = {
    "EmbeddingRequest": {"dimensions": _DIMENSIONS},
    "ScoreRequest": {"dimensions": _DIMENSIONS, "text_1": _TEXTS, "text_2": _TEXTS},
    "RerankRequest": {
        "dimensions": _DIMENSIONS,
        "documents": _TEXTS,
        "top_n": {"integer": {"minimum": 0, "maximum": _INT64}},
    },
    "PoolingRequest": {"dimensions": _DIMENSIONS},
    "LlamaRequest": _LLAMA,
    "InfillRequest": _LLAMA,
    "ResponseRequest": {"input": {"array": {"minItems": 1}}},
    "FunctionTool": {"name": {"string": {"pattern": "^[A-Za-z0-9_-]{1,64}$"}}},
    "AllowedTools": {"tools": {"array": {"minItems": 1}}},
    "LogLevelBody": {"level": {"string": {"enum": list(LEVELS)}}},
}


def _range(allowed: Range) -> Keywords:
    whole = isinstance(allowed.low, int)
    high = _INT64 if whole and allowed.high is None else allowed.high
    low = "exclusiveMinimum" if allowed.open_low else "minimum"
    return {"integer" if whole else "number": {low: allowed.low, "maximum": high}}


def _token(model: ModelFacts) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": model.vocab_size - 1}


def _apply(schema: Schema, keywords: Keywords) -> None:
    """Bound those of the alternatives that are of a type in ``keywords``."""
    for each in (schema, *schema.get("anyOf", ())):
        each.update(keywords.get(each.get("type", ""), {}))


def _prompt(max_tokens: int, model: ModelFacts, max_prompts: int) -> Schema:
    """Exact where the struct's type is not: no mixtures, nothing empty."""
    tokens = {
        "type": "array",
        "minItems": 1,
        "maxItems": max_tokens,
        "items": _token(model),
    }
    several = {"type": "array", "minItems": 1, "maxItems": max_prompts}
    text = {"type": "string"}
    return {"anyOf": [text, tokens, {**several, "items": text}, {**several, "items": tokens}]}


def _content(given: Schema) -> Schema:
    """Text, or parts that are text."""
    parts = [_part("text"), _part("refusal")]
    kinds = [
        {"type": "array", "items": {"anyOf": parts}} if each.get("type") == "array" else each
        for each in given["anyOf"]
    ]
    return {**given, "anyOf": kinds}


def _part(kind: str) -> Schema:
    notes = {
        rule.path[-1]: {"description": "Any JSON."}
        for rule in rules_of(CHAT)
        if rule.path[:-1] == ("messages", "content")
    }
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, kind: {"type": "string"}, **notes},
        "required": ["type", kind],
        "additionalProperties": {"type": "null"},
    }


def _rule(given: Mapping[str, Schema], then: Mapping[str, Schema], *needed: str) -> Schema:
    """Where the fields ``given`` are so, those of ``then`` are, and those ``needed`` are there."""
    rule: Schema = {"properties": dict(then)}
    if needed:
        rule["required"] = list(needed)
    return {"if": {"properties": dict(given), "required": list(given)}, "then": rule}


def _absent(*fields: str) -> dict[str, Schema]:
    return {field: {"type": "null"} for field in fields}


_TRUE = {"const": True}
_STREAM_OPTIONS = _rule({"stream_options": {"type": "object"}}, {"stream": _TRUE}, "stream")
_SOME: Schema = {"type": "integer", "minimum": 1}
_PRESENT = {"type": ["string", "array"]}
_NO_CALLS: Schema = {"enum": [None, []]}
_CALL = ("call_id", "name", "arguments")
_OF_CONTENT = ("content", "add_special", "parse_special", "with_pieces")
_OF_ANSWERS = ("function_call", "reasoning", "reasoning_content", "refusal")
_RULES: Mapping[str, list[Schema]] = {
    "CompletionRequest": [_STREAM_OPTIONS],
    "ChatRequest": [
        _STREAM_OPTIONS,
        _rule({"top_logprobs": _SOME}, {"logprobs": _TRUE}, "logprobs"),
    ],
    "ResponseRequest": [
        _rule(
            {"top_logprobs": _SOME},
            {"include": {"type": "array", "contains": {"const": LOGPROBS}}},
            "include",
        )
    ],
    "StreamOptions": [
        _rule({"continuous_usage_stats": _TRUE}, {"include_usage": _TRUE}, "include_usage")
    ],
    "Message": [
        _rule(
            {"role": {"enum": ["system", "developer", "user"]}},
            {
                "content": _PRESENT,
                **_absent("tool_call_id", *_OF_ANSWERS),
                "tool_calls": _NO_CALLS,
            },
            "content",
        ),
        _rule(
            {"role": {"const": "tool"}},
            {
                "content": _PRESENT,
                "tool_call_id": {"type": "string", "minLength": 1},
                **_absent(*_OF_ANSWERS),
                "tool_calls": _NO_CALLS,
            },
            "content",
            "tool_call_id",
        ),
        _rule(
            {"role": {"const": "function"}},
            {
                "content": _PRESENT,
                "name": {"type": "string", "minLength": 1},
                **_absent("tool_call_id", *_OF_ANSWERS),
                "tool_calls": _NO_CALLS,
            },
            "content",
            "name",
        ),
        _rule({"role": {"const": "assistant"}}, _absent("tool_call_id")),
    ],
    "InputItem": [
        {
            "if": {"properties": {"type": {"enum": [None, "message"]}}},
            "then": {
                "properties": {"role": {"type": "string"}, "content": _PRESENT},
                "required": ["role", "content"],
            },
        },
        _rule(
            {"type": {"const": "function_call"}},
            {name: {"type": "string"} for name in _CALL},
            *_CALL,
        ),
        _rule(
            {"type": {"const": "function_call_output"}},
            {"call_id": {"type": "string"}, "output": _PRESENT},
            "call_id",
            "output",
        ),
    ],
    "InputText": [
        _rule({"type": {"const": "refusal"}}, _absent("text"), "refusal"),
        _rule({"type": {"enum": ["input_text", "output_text"]}}, _absent("refusal"), "text"),
    ],
    "TokenizeRequest": [
        _rule(
            {"prompt": {"type": "string"}},
            _absent(
                "messages",
                "add_generation_prompt",
                "continue_final_message",
                "chat_template_kwargs",
                *_OF_CONTENT,
            ),
        ),
        _rule({"messages": {"type": "array"}}, _absent(*_OF_CONTENT)),
        _rule(
            {"content": {"type": "string"}},
            _absent(
                *("add_special_tokens", "return_token_strs", "add_generation_prompt"),
                *("continue_final_message", "chat_template_kwargs"),
            ),
        ),
        {
            "anyOf": [
                {"properties": {field: {"not": {"type": "null"}}}, "required": [field]}
                for field in ("prompt", "messages", "content")
            ]
        },
    ],
    "AbortBody": [
        _rule({"all": _TRUE}, _absent("request_id")),
        {
            "anyOf": [
                {"properties": {"all": _TRUE}, "required": ["all"]},
                {"properties": {"request_id": {"type": "string"}}, "required": ["request_id"]},
            ]
        },
    ],
}
"""What holds between the fields of one object."""
