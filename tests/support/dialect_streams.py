"""Streams of the dialects whose events are alike, as servers of Penstock's send them.

Each is of a text that is cut at places.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock.router.resume.framing import EVENTS, LINES, Framing

Event = dict[str, Any]


def pieces(text: str, cuts: Sequence[int]) -> Iterator[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return (text[a:b] for a, b in pairwise(places))


def _logprobs(text: str) -> list[Event]:
    return [{"token": each, "logprob": -ord(each) / 7} for each in text]


def ollama_chat(text: str, cuts: Sequence[int], run: int) -> list[Event]:
    """A thought, the same as content, and two calls."""
    events: list[Event] = []

    def add(message: Event, **rest: Any) -> None:
        shown = {"role": "assistant", "content": "", **message}
        events.append({"model": "m", "created_at": f"{run}", "done": False, **rest})
        events[-1]["message"] = shown

    for piece in pieces(text, cuts):
        add({"thinking": piece}, logprobs=_logprobs(piece))
    for piece in pieces(text, [*cuts, 3]):
        add({"content": piece}, logprobs=_logprobs(piece))
    for number in range(2):
        call = {"function": {"name": "f", "arguments": {"error": number}}}
        add({"tool_calls": [call]})
    add({}, done=True, done_reason="stop", total_duration=run, eval_count=len(text))
    return events


def ollama_generate(text: str, cuts: Sequence[int], run: int) -> list[Event]:
    events: list[Event] = [
        {"model": "m", "created_at": f"{run}", "done": False, "response": piece}
        for piece in pieces(text, cuts)
    ]
    end = {"done": True, "response": "", "context": [1, 2], "eval_duration": run}
    return [*events, {"model": "m", "created_at": f"{run}", **end}]


def llama(text: str, cuts: Sequence[int], run: int) -> list[Event]:
    events: list[Event] = []
    said = 0
    for piece in pieces(text, cuts):
        said += len(piece)
        part = {"index": 0, "content": piece, "tokens": list(map(ord, piece)), "stop": False}
        more = {"tokens_predicted": said, "completion_probabilities": _logprobs(piece)}
        events.append({**part, **more, "timings": {"prompt_ms": run}})
    end = {"content": "", "tokens": [], "stop": True, "tokens_predicted": said}
    return [*events, {**end, "timings": {"prompt_ms": run}, "stop_type": "eos"}]


def tgi(text: str, cuts: Sequence[int], run: int) -> list[Event]:
    """One event for each token, wherever the engine cut them."""
    events: list[Event] = [
        {"index": index, "token": {"id": ord(each), "text": each}, "generated_text": None}
        for index, each in enumerate(text, 1)
    ]
    events[-1]["generated_text"] = text
    return events


def kserve(text: str, cuts: Sequence[int], run: int) -> list[Event]:
    events: list[Event] = [
        {
            "model_name": "m",
            "text_output": piece,
            "finish_reason": "None",
            "num_output_tokens": len(piece),
        }
        for piece in pieces(text, cuts)
    ]
    last = {"text_output": "", "finish_reason": "stop", "num_output_tokens": 1}
    return [*events, {"model_name": "m", **last}]


@dataclass(frozen=True)
class Dialect:
    path: str
    events: Callable[[str, Sequence[int], int], list[Event]]
    framing: Framing
    text: Callable[[Event], str]
    """That of an event."""
    seed: Callable[[Event], Any]
    """That of a request\'s body."""
    error: Event
    """The error by which a server says that its engine has died, as its dialect has it."""

    def encoded(self, event: Event) -> bytes:
        return self.framing.event(json.dumps(event, separators=(",", ":")).encode())

    def asked(self, **fields: Any) -> Event:
        """A body that asks for a stream."""
        return {"model": "m", "stream": True, **fields}


DIED = {"error": "gone", "code": "engine_dead"}
DIALECTS = {
    "chat": Dialect(
        "/api/chat",
        ollama_chat,
        LINES,
        lambda event: event["message"]["content"],
        lambda body: body["options"]["seed"],
        DIED,
    ),
    "generate": Dialect(
        "/api/generate",
        ollama_generate,
        LINES,
        lambda event: event["response"],
        lambda body: body["options"]["seed"],
        DIED,
    ),
    "llama": Dialect(
        "/completion",
        llama,
        EVENTS,
        lambda event: event["content"],
        lambda body: body["seed"],
        {"error": {"code": 503, "message": "gone", "type": "a", "reason": "engine_dead"}},
    ),
    "tgi": Dialect(
        "/generate_stream",
        tgi,
        EVENTS,
        lambda event: event["token"]["text"],
        lambda body: body["parameters"]["seed"],
        {**DIED, "error_type": "overloaded"},
    ),
    "kserve": Dialect(
        "/v2/models/m/generate_stream",
        kserve,
        EVENTS,
        lambda event: event["text_output"],
        lambda body: body["seed"],
        DIED,
    ),
}
