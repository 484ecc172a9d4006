"""Plain bodies of every endpoint, and what an answer to them holds."""

from __future__ import annotations

from typing import Any

import httpx

from support.http_client import Server

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
EMBEDDINGS, TOKENIZE = "/v1/embeddings", "/tokenize"
USER = {"role": "user", "content": "Hi"}
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": "fake", "prompt": "Hi", "max_tokens": 4},
    CHAT: {"model": "fake", "messages": [USER], "max_tokens": 4},
    RESPONSES: {"model": "fake", "input": "Hi", "max_output_tokens": 4},
    EMBEDDINGS: {"model": "fake", "input": "Hi"},
    TOKENIZE: {"model": "fake", "messages": [USER]},
}
IGNORED = "x-penstock-ignored"


def text_of(path: str, answer: httpx.Response) -> Any:
    """What was generated, embedded or tokenized."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    if path == RESPONSES:
        return body["output"][0]["content"][0]["text"]
    if path == EMBEDDINGS:
        return body["data"][0]["embedding"]
    if path == TOKENIZE:
        return body["tokens"]
    choice = body["choices"][0]
    return choice["text"] if path == COMPLETIONS else choice["message"]["content"]


def changed_nothing(server: Server, path: str, fields: dict[str, Any]) -> list[str]:
    """The names in the header; the answer is that without ``fields``."""
    plain, given = (server.post(path, {**BODIES[path], **more}) for more in ({}, fields))
    assert text_of(path, plain) == text_of(path, given)
    assert IGNORED not in plain.headers
    return [name for name in given.headers.get(IGNORED, "").split(", ") if name]
