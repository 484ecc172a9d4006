"""Streams of completions and of chats, in OpenAI's dialect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.router.resume.framing import EVENTS
from penstock.router.resume.parts import NAMES, Part, Path
from penstock.router.resume.stream import Event, Stream, decoded

_GROWING: Final = frozenset(
    {
        *("delta", "logprobs", "text", "content", "reasoning_content", "refusal", "arguments"),
        *("token_ids", "tokens", "token_logprobs", "top_logprobs", "text_offset"),
    }
)
"""Parts that an event continues; they are texts and lists."""
_BY_INDEX: Final = "tool_calls"
_PER_EVENT: Final = frozenset({"id", "created", "object", "model", "choices", "usage"})
_DONE: Final = b"[DONE]"


class ChoiceStream(Stream):
    """A stream of completions or of a chat."""

    def __init__(self) -> None:
        super().__init__()
        self._first: Event = {}  # whose names and times are the stream's
        self._totals = False  # whether the event came that has no choices, and tells the usage

    def is_over(self, events: bytes) -> bool:
        return events.endswith(EVENTS.event(_DONE))

    def _note(self, data: bytes) -> None:
        if data == _DONE:
            return
        event = decoded(data)
        self._first = self._first or event
        self._totals = self._totals or not event.get("choices")
        for part in parts_of(event):
            self.parts.add(part)

    def _rest(self, data: bytes) -> bytes | None:
        if data == _DONE:
            self.parts.check_reached()
            return EVENTS.event(data)
        event = decoded(data)
        return EVENTS.event(data) if "error" in event else self._fresh(event)

    def _is_last(self, event: Event) -> bool:
        return False  # what is last is no JSON

    def _fresh(self, event: Event) -> bytes | None:
        fresh: dict[Path, Any] = {}
        for part in parts_of(event):
            left = self.parts.left(part)
            if left is not None:
                fresh[part.path] = left
        if not fresh and event.get("choices"):
            return None
        if not event.get("choices"):
            if self._totals:
                return None
            self._totals = True
        changed: Event = {}
        for name, value in event.items():
            if name in NAMES:
                changed[name] = self._first.get(name, value)
            elif name == "choices":
                changed[name] = [
                    each
                    for choice in value
                    if (each := _only(choice, ("choices", choice.get("index", 0)), fresh))
                ]
            elif name in _PER_EVENT or (name,) in fresh:
                changed[name] = value
        if not self._first:
            self._first = event
        return self._event(changed)


def _only(value: dict[str, Any], path: Path, fresh: dict[Path, Any]) -> dict[str, Any]:
    """The fresh parts of a choice, or of an object within it, in its own form; {} where there are
    none."""
    kept: dict[str, Any] = {}
    news = False
    for name, each in value.items():
        here = (*path, name)
        if name == "index":
            kept[name] = each
        elif name == _BY_INDEX and isinstance(each, list):
            calls = [
                call for item in each if (call := _only(item, (*here, item.get("index", 0)), fresh))
            ]
            if calls:
                kept[name] = calls
                news = True
        elif isinstance(each, dict):
            inner = _only(each, here, fresh)
            news = news or bool(inner)
            if inner or name == "delta":
                kept[name] = inner
            else:
                kept[name] = None
        elif here in fresh:
            kept[name] = fresh[here]
            news = True
        elif each is None:
            kept[name] = None
    return kept if news else {}


def parts_of(event: Event) -> Iterator[Part]:
    """The parts of an event, but for names of the run and what each event has."""
    for name, value in event.items():
        if name not in _PER_EVENT and value is not None:
            yield Part((name,), value, False)
    for choice in event.get("choices") or ():
        yield from _parts(choice, ("choices", choice.get("index", 0)))


def _parts(value: dict[str, Any], path: Path) -> Iterator[Part]:
    for name, each in value.items():
        here = (*path, name)
        if each is None or name == "index":
            continue
        if name == _BY_INDEX and isinstance(each, list):
            for item in each:
                yield from _parts(item, (*here, item.get("index", 0)))
        elif isinstance(each, dict):
            yield from _parts(each, here)
        elif name in _GROWING and isinstance(each, (str, list)):
            yield Part(here, each, True)
        else:
            yield Part(here, each, False)
