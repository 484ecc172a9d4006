"""Requests of every kind that a stream can have, and what a stream of theirs has told."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any, Final

_ROOT: Final = "def add(a, b):"
_CHAT: Final = [{"role": "user", "content": _ROOT}]
_SCHEMA: Final = {
    "type": "object",
    "properties": {"places": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    "required": ["places"],
    "additionalProperties": False,
}
_TOOL: Final = {"name": "weather", "strict": True, "parameters": _SCHEMA}
_GREEDY: Final = {"temperature": 0}
_KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "text": ("completions", {"prompt": "def fib(n):", "logprobs": 2}),
    "several": ("completions", {"prompt": ["def a():", "x = "], "n": 2}),
    "penalties": (
        "completions",
        {"prompt": "import ", "presence_penalty": 0.5, "frequency_penalty": 0.3, "stop": ["zzz"]},
    ),
    "regex": ("completions", {"prompt": "[", "structured_outputs": {"regex": "[a-z ]{900,}"}}),
    "schema": (
        "chat/completions",
        {
            "messages": _CHAT,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "places", "strict": True, "schema": _SCHEMA},
            },
        },
    ),
    "tools": (
        "chat/completions",
        {
            "messages": _CHAT,
            "tools": [{"type": "function", "function": _TOOL}],
            "tool_choice": "required",
            "stream_options": {"include_usage": True},
        },
    ),
    "response": ("responses", {"input": _ROOT}),
    "response's tools": (
        "responses",
        {"input": _ROOT, "tools": [{"type": "function", **_TOOL}], "tool_choice": "required"},
    ),
}
_OWN: Final = frozenset({"id", "item_id", "call_id", "created", "created_at", "completed_at"})
"""What each run gives a name or a time of its own."""
_GROWS: Final = frozenset({"text", "content", "reasoning_content", "refusal", "arguments"})


@dataclass(frozen=True)
class Question:
    kind: str
    path: str
    body: dict[str, Any]

    @property
    def name(self) -> str:
        sampled = self.body.get("seed")
        return f"{self.kind}, {'greedy' if sampled is None else f'seed {sampled}'}"


def questions(model: str, seeds: int, tokens: int) -> list[Question]:
    """Each kind, greedy and with so many seeds; answers have ``tokens`` tokens where nothing
    ends them before."""
    draw = random.Random(0)
    found = []
    for kind, (path, asked) in _KINDS.items():
        for seed in (None, *(draw.randrange(1 << 31) for _ in range(seeds))):
            sampling = _GREEDY if seed is None else {"temperature": 1.0, "seed": seed}
            body = {"model": model, "stream": True, **asked, **sampling}
            if path == "responses":  # which has no options beyond OpenAI's
                body["max_output_tokens"] = tokens
                if body.pop("seed", None) is not None:
                    continue
            else:
                body |= {"max_tokens": tokens, "ignore_eos": True}
            found.append(Question(kind, f"/v1/{path}", body))
    return found


@dataclass
class Told:
    """What a stream has told, part by part, however it was cut into events."""

    parts: dict[tuple[str | int, ...], Any] = field(default_factory=dict)
    events: int = 0
    error: str | None = None
    done: bool = False

    def take(self, data: bytes) -> None:
        """Add the data of an event. Raises ValueError for what no stream of ours has."""
        if self.done:
            raise ValueError(f"an event behind the last: {data[:200]!r}")
        if data == b"[DONE]":
            self.done = True
            return
        said = json.loads(data)
        kind = said.get("type", "")
        if ("error" in said and said["error"] is not None) or kind in ("error", "response.failed"):
            self.error = data.decode()[:500]
        elif not kind:
            self._grow((), said)
        else:
            self._take_typed(kind, said)
        self.events += 1

    def _take_typed(self, kind: str, said: dict[str, Any]) -> None:
        """An event of the responses' dialect."""
        if said["sequence_number"] != self.events:
            raise ValueError(f"event {said['sequence_number']} came as number {self.events}")
        if kind.endswith(".delta"):
            path = (kind, said["output_index"], said.get("content_index", 0))
            self.parts[path] = self.parts.get(path, "") + said["delta"]
        elif kind in ("response.completed", "response.incomplete"):
            self.done = True
            self.parts[(kind,)] = _without_own(said["response"])
        elif kind.endswith(".done"):
            self._once((kind, said["output_index"], said.get("content_index", 0)), said)

    def _once(self, path: tuple[str | int, ...], said: dict[str, Any]) -> None:
        if path in self.parts:
            raise ValueError(f"{path} came twice")
        self.parts[path] = _without_own({**said, "sequence_number": 0})

    def _grow(self, path: tuple[str | int, ...], value: Any) -> None:
        name = path[-1] if path else ""
        if value is None or name in _OWN:
            return
        if isinstance(value, dict):
            for key, each in value.items():
                self._grow((*path, key), each)
        elif isinstance(value, list) and all(isinstance(v, dict) and "index" in v for v in value):
            for each in value:
                self._grow((*path, each["index"]), each)
        elif isinstance(value, list) or name in _GROWS:
            known = self.parts.get(path)
            self.parts[path] = value if known is None else known + value
        elif self.parts.setdefault(path, value) != value:
            raise ValueError(f"{path} was {self.parts[path]!r} and is {value!r}")


def _without_own(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_own(each) for name, each in value.items() if name not in _OWN}
    if isinstance(value, list):
        return [_without_own(each) for each in value]
    return value
