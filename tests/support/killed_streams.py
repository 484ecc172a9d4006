"""Streams whose servers are killed: what is asked for, and what was answered in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from penstock.router.delivery import RESUMED

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "places": {"type": "array", "items": {"type": "string"}, "minItems": 60},
            },
            "required": ["places"],
            "additionalProperties": False,
        },
    },
}
HELLO = [{"role": "user", "content": "def add(a, b):"}]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("completions", {"prompt": "def fib(n):", "temperature": 1.0, "logprobs": 2}),
    "several": (
        "completions",
        {"prompt": ["def a():", "x = "], "n": 2, "temperature": 0.7, "seed": 5},
    ),
    "penalties": (
        "completions",
        {
            "prompt": "import ",
            "presence_penalty": 0.5,
            "frequency_penalty": 0.3,
            "stop": ["never said"],
            "temperature": 0.9,
        },
    ),
    "grammar": (
        "completions",
        {
            "prompt": "[",
            "structured_outputs": {"regex": "[a-z ]{900,}"},
            "temperature": 1.2,
            "seed": 3,
        },
    ),
    "chat": ("chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 2}),
    "tools": (
        "chat/completions",
        {"messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "seed": 11},
    ),
    "response": ("responses", {"input": "def add(a, b):", "temperature": 0}),
    "response's tools": (
        "responses",
        {
            "input": "def add(a, b):",
            "tools": [{"type": "function", **WEATHER["function"]}],
            "tool_choice": "required",
            "temperature": 0,
        },
    ),
    "message": ("messages", {"messages": HELLO, "temperature": 0, "system": "Count to 900."}),
    "message's tools": (
        "messages",
        {
            "messages": HELLO,
            "tools": [
                {
                    "name": "weather",
                    "input_schema": WEATHER["function"]["parameters"],
                }
            ],
            "tool_choice": {"type": "any"},
            "seed": 7,
        },
    ),
    "greedy": (
        "chat/completions",
        {"messages": HELLO, "temperature": 0, "stream_options": {"include_usage": True}},
    ),
}


def asked_by(kind: str) -> tuple[str, dict[str, Any]]:
    """The endpoint below ``/v1`` and the body of one of :data:`REQUESTS`, as a stream."""
    endpoint, asked = REQUESTS[kind]
    body = {"stream": True, "max_tokens": 400, "ignore_eos": True, **asked}
    if endpoint == "responses":
        body["max_output_tokens"] = body.pop("max_tokens")
    if endpoint in ("responses", "messages"):
        del body["ignore_eos"]
    return endpoint, body


def parts(endpoint: str, lines: list[str]) -> dict[Any, Any]:
    """What a stream says, part by part, but for names of calls."""
    stream = RESUMED[f"/v1/{endpoint}"]()
    stream.add("".join(f"data: {line}\n\n" for line in lines if line != "[DONE]").encode())
    stream.fold()
    return {path: value for path, value in stream.parts.has.items() if path[-1] != "id"}


def streamed(
    client: httpx.Client, path: str, body: dict[str, Any], kill: Callable[[], None] | None = None
) -> list[str]:
    """The events of a stream; ``kill`` is called when the fifth has come, and the 80th."""
    lines: list[str] = []
    with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: "):
                lines.append(line.removeprefix("data: "))
                if len(lines) in (5, 80) and kill is not None:
                    kill()
    return lines
