"""Bodies that are no request, or none that can be served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hostile.case import Case, posted

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/tokenize")

_TEXTS = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"1e999",
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b'{"model": "\\ud800"}',
    b'{"a": ' + b"[" * 200_000,
    b'{"a": ' * 200_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"model": NaN}',
    b'{"model": "x", "model": "y"}',
    b"\0" * 1000,
)

_VALUES: dict[str, list[Any]] = {
    "model": [None, 1, "", "nothing", ["demo"]],
    "max_tokens": [-1, 0, 1.5, "9", 10**30, True],
    "max_output_tokens": [-1, 0, 10**30, "9"],
    "temperature": [-1, "hot", 1e308, [], 10**400],
    "top_p": [0, 1.1, -1, "x"],
    "top_k": [-2, 2**70, 0.5],
    "n": [0, -1, 10**9, 2**64, "2"],
    "stop": [1, {}, [""], ["a"] * 5000, [["a"]]],
    "seed": [2**70, "x", 0.5],
    "logit_bias": [{"x": 1}, {"-1": 1}, {str(2**70): 1}, [1], {"1": "x"}],
    "logprobs": [-1, 10**9, "x"],
    "stream": ["yes", 1],
    "stream_options": [1, {"include_usage": 1}],
    "user": [1, "x" * 1_000_000],
    "dimensions": [-1, 10**12],
    "prompt": [None, 1, [], [[]], [-1], [10**30], [[1], "a"], {"a": 1}, "x" * 3_000_000],
    "input": [None, 1, [], [{}], [[]], "x" * 3_000_000],
    "messages": [
        None,
        [],
        [1],
        [{}],
        [{"role": "king", "content": "a"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///"}}]}],
        [{"role": "tool", "content": "a"}],
        [{"role": "user", "content": "x" * 3_000_000}],
        [{"role": "user", "content": "a"}] * 100_000,
    ],
    "tools": [1, [1], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}]],
    "tool_choice": ["always", {"type": "function", "function": {"name": "none"}}],
    "response_format": [1, {"type": "xml"}, {"type": "json_schema"}],
}


def cases(model: str) -> Iterator[Case]:
    for path in PATHS:
        for i, text in enumerate(_TEXTS):
            yield posted(f"{path}: text {i}", path, text)
    for field, values in _VALUES.items():
        for path in _paths(field):
            for i, value in enumerate(values):
                body = {**_plain(path, model), field: value}
                yield posted(f"{path}: {field} {i}", path, json.dumps(body).encode())


def _paths(field: str) -> tuple[str, ...]:
    if field in ("prompt",):
        return ("/v1/completions", "/tokenize")
    if field in ("input", "max_output_tokens"):
        return ("/v1/responses",) if field == "max_output_tokens" else PATHS[2:4]
    if field == "dimensions":
        return ("/v1/embeddings",)
    if field in ("messages", "tools", "tool_choice", "response_format"):
        return ("/v1/chat/completions",)
    return PATHS[:2]


def _plain(path: str, model: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": model}
    if path in ("/v1/completions", "/tokenize"):
        asked["prompt"] = "a"
    elif path == "/v1/chat/completions":
        asked["messages"] = [{"role": "user", "content": "a"}]
    else:
        asked["input"] = "a"
    if path in PATHS[:2]:
        asked["max_tokens"] = 4
    elif path == "/v1/responses":
        asked["max_output_tokens"] = 4
    return asked
