"""Streams whose servers are killed: what is asked for, and what was answered in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from penstock.router.resume.dialects import Streaming, streaming_at

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
MODEL = "penstock-demo"
HELLO = [{"role": "user", "content": "def add(a, b):"}]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("/v1/completions", {"prompt": "def fib(n):", "temperature": 1.0, "logprobs": 2}),
    "several": (
        "/v1/completions",
        {"prompt": ["def a():", "x = "], "n": 2, "temperature": 0.7, "seed": 5},
    ),
    "penalties": (
        "/v1/completions",
        {
            "prompt": "import ",
            "presence_penalty": 0.5,
            "frequency_penalty": 0.3,
            "stop": ["never said"],
            "temperature": 0.9,
        },
    ),
    "grammar": (
        "/v1/completions",
        {
            "prompt": "[",
            "structured_outputs": {"regex": "[a-z ]{900,}"},
            "temperature": 1.2,
            "seed": 3,
        },
    ),
    "chat": ("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 2}),
    "tools": (
        "/v1/chat/completions",
        {"messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "seed": 11},
    ),
    "response": ("/v1/responses", {"input": "def add(a, b):", "temperature": 0}),
    "response's tools": (
        "/v1/responses",
        {
            "input": "def add(a, b):",
            "tools": [{"type": "function", **WEATHER["function"]}],
            "tool_choice": "required",
            "temperature": 0,
        },
    ),
    "message": ("/v1/messages", {"messages": HELLO, "temperature": 0, "system": "Count to 900."}),
    "message's tools": (
        "/v1/messages",
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
        "/v1/chat/completions",
        {"messages": HELLO, "temperature": 0, "stream_options": {"include_usage": True}},
    ),
    "Ollama's chat": (
        "/api/chat",
        {
            "model": MODEL,
            "messages": HELLO,
            "logprobs": True,
            "options": {"temperature": 1.1, "seed": 4, "stop": ["never said"]},
        },
    ),
    "Ollama's prompt": ("/api/generate", {"model": MODEL, "prompt": "import ", "raw": True}),
    "Ollama's format": (
        "/api/chat",
        {
            "model": MODEL,
            "messages": HELLO,
            "format": WEATHER["function"]["parameters"],
            "options": {"temperature": 0},
        },
    ),
    "llama-server": (
        "/completion",
        {"prompt": "def fib(n):", "n_probs": 2, "seed": 9, "temperature": 0.9},
    ),
    "llama-server's grammar": (
        "/completion",
        {"prompt": "[", "grammar": 'root ::= [a-z ]+ "#"', "temperature": 0},
    ),
    "TGI": (
        "/generate_stream",
        {
            "inputs": "import ",
            "parameters": {"do_sample": True, "top_n_tokens": 2, "details": True, "seed": 8},
        },
    ),
    "KServe": (
        f"/v2/models/{MODEL}/generate_stream",
        {
            "text_input": "def a():",
            "return_num_output_tokens": True,
            "return_finish_reason": True,
            "temperature": 0.8,
            "seed": 2,
        },
    ),
}


_LIMITED_BY = {
    "/v1/responses": ("max_output_tokens",),
    "/completion": ("n_predict",),
    "/generate_stream": ("parameters", "max_new_tokens"),
    "/api/chat": ("options", "num_predict"),
    "/api/generate": ("options", "num_predict"),
}
_NEVER_ENDING = ("/v1/completions", "/v1/chat/completions", "/completion", "/v2/")
"""Paths of dialects that have ``ignore_eos``."""


def asked_by(kind: str, tokens: int = 400) -> tuple[str, dict[str, Any]]:
    """The path and the body of one of :data:`REQUESTS`, as a stream of so many tokens."""
    path, asked = REQUESTS[kind]
    body = {"stream": True, **asked}
    *within, limit = _LIMITED_BY.get(path, ("max_tokens",))
    holder = body
    for name in within:
        holder[name] = holder = dict(holder.get(name, {}))
    holder[limit] = tokens
    if path.startswith(_NEVER_ENDING):
        body["ignore_eos"] = True
    return path, body


def _streaming(path: str) -> Streaming:
    found = streaming_at(path)
    assert found is not None
    return found


def parts(path: str, lines: list[str]) -> dict[Any, Any]:
    """What a stream says, part by part, but for names of calls."""
    stream = _streaming(path).stream()
    stream.add(b"".join(stream.framing.event(line.encode()) for line in lines))
    stream.fold()
    return {path: value for path, value in stream.parts.has.items() if path[-1] != "id"}


def is_whole(path: str, lines: list[str]) -> bool:
    """Whether a stream has its last event, as far as there is such an event."""
    stream = _streaming(path).stream()
    last = stream.framing.event(lines[-1].encode())
    return stream.is_over(last) or stream.ended()


def streamed(
    client: httpx.Client, path: str, body: dict[str, Any], kill: Callable[[], None] | None = None
) -> list[str]:
    """The events of a stream; ``kill`` is called when the fifth has come, and the 80th."""
    lines: list[str] = []
    with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        mark = _streaming(path).stream().framing.mark.decode()
        for line in response.iter_lines():
            if line and line.startswith(mark):
                lines.append(line.removeprefix(mark))
                if len(lines) in (5, 80) and kill is not None:
                    kill()
    return lines
