"""Ollama's own client for Python: chats, prompts, streams, tools, formats, embeddings."""

from __future__ import annotations

from typing import Any

import ollama
from checks import HI, MODEL, TOKENS, TOOL, URL, Trip, attempt, booked

client = ollama.Client(host=URL.removesuffix("/v1"))
OPTIONS = {"num_predict": TOKENS, "temperature": 0}


def two_turns() -> None:
    said = client.chat(MODEL, HI, options=OPTIONS)
    assert said.message.content
    assert client.chat(MODEL, [*HI, said.message, *HI], options=OPTIONS).message.content


def streams() -> None:
    whole = client.chat(MODEL, HI, options=OPTIONS)
    parts = list(client.chat(MODEL, HI, options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].eval_count == whole.eval_count


def prompts() -> None:
    for raw in (False, True):
        whole = client.generate(MODEL, "import os", raw=raw, options=OPTIONS)
        parts = client.generate(MODEL, "import os", raw=raw, options=OPTIONS, stream=True)
        assert "".join(part.response or "" for part in parts) == whole.response != ""


def tools() -> None:
    """Nothing can force a call in this dialect: one is sent back as if the model had made it."""
    call = {"function": {"name": "book_trip", "arguments": {"city": "Oslo", "days": 2}}}
    booked({"city": "Oslo", "days": 2})
    turns: list[Any] = [
        *HI,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "booked", "tool_name": "book_trip"},
    ]
    assert client.chat(MODEL, turns, tools=[TOOL], options=OPTIONS).done


def formats() -> None:
    schema = Trip.model_json_schema()
    answer = client.chat(MODEL, HI, format=schema, options={**OPTIONS, "num_predict": 100})
    Trip.model_validate_json(answer.message.content or "")


def models() -> None:
    assert [each.model for each in client.list().models] == [MODEL]
    assert [each.model for each in client.ps().models] == [MODEL]
    assert "completion" in (client.show(MODEL).capabilities or [])


def embeddings() -> None:
    answer = client.embed(MODEL, ["import os", "import sys"])
    assert len(answer.embeddings) == 2
    assert list(client.embeddings(MODEL, "import os").embedding) == list(answer.embeddings[0])


def errors() -> None:
    try:
        client.chat("other", HI)
    except ollama.ResponseError:
        return
    raise AssertionError("no error")


attempt("chat: two turns", two_turns)
attempt("chat: stream", streams)
attempt("generate, with the template and raw, streamed", prompts)
attempt("chat: tools", tools)
attempt("chat: a format", formats)
attempt("list, ps, show", models)
attempt("embeddings", embeddings)
attempt("an error is one of the client's own", errors)
