"""Streams of ``/v1/responses``.

Each event has a type and a number; events of one item have its place. Those that grow a text
(``.delta``) are cut anywhere, and each other one comes once. Items, calls and the response have
names that each run draws for itself, and the client keeps those of the first run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.router.resume.parts import Part
from penstock.router.resume.stream import Event, Stream, common, decoded

_OWN: Final = frozenset({"id", "item_id", "call_id", "created_at", "sequence_number", "usage"})
"""What each run has of its own."""
_LAST: Final = frozenset(
    f"response.{how}" for how in ("completed", "incomplete", "failed", "cancelled")
)
_NOWHERE: Final = -1


class ResponseStream(Stream):
    """A stream of the Responses API."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[tuple[int, str], Any] = {}
        """Those of the first run: by the place of an item, or none, and the kind of name."""
        self._other: dict[str, str] = {}
        """Names of the latest run, and those that stand for them."""
        self._events = 0

    def begin(self) -> None:
        super().begin()
        self._other = {}

    def _note(self, data: bytes) -> None:
        event = decoded(data)
        self._events += 1
        for key, name in _names(event):
            self._names.setdefault(key, name)
        for part in parts_of(event):
            self.parts.add(part)

    def _rest(self, data: bytes) -> bytes | None:
        event = decoded(data)
        if event["type"] in _LAST:
            self.parts.check_reached()
        for key, name in _names(event):
            known = self._names.setdefault(key, name)
            if isinstance(name, str):
                self._other[name] = known
        fresh = False
        for part in parts_of(event):
            left = self.parts.left(part)
            fresh = fresh or left is not None
            if part.grows:
                event[str(part.path[-1])] = part.value[:0] if left is None else left
        if not fresh:
            return None
        event = self._renamed(event)
        event["sequence_number"] = self._events
        self._events += 1
        return b"event: %b\n%b" % (str(event["type"]).encode(), self._event(event))

    def _is_last(self, event: Event) -> bool:
        return event.get("type") in _LAST

    def _renamed(self, value: Any) -> Any:
        """The same with the names of the first run."""
        if isinstance(value, dict):
            return {
                key: self._names.get((_NOWHERE, "created_at"), each)
                if key == "created_at"
                else self._other.get(each, each)
                if key in _OWN and isinstance(each, str)
                else self._renamed(each)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self._renamed(each) for each in value]
        return value


def parts_of(event: Event) -> Iterator[Part]:
    """The parts of an event, without what each run has of its own."""
    kind, place = event["type"], event.get("output_index", _NOWHERE)
    if kind.endswith(".delta"):
        for name in ("delta", "logprobs"):
            if name in event:
                yield Part((place, kind, name), event[name], True)
    else:
        yield Part((place, kind), common(event, _OWN), False)


def _names(event: Event) -> Iterator[tuple[tuple[int, str], Any]]:
    """What names the response and its items, where they begin."""
    if event["type"] == "response.created":
        for name in ("id", "created_at"):
            yield (_NOWHERE, name), event["response"][name]
    elif event["type"] == "response.output_item.added":
        for name in ("id", "call_id"):
            if name in event["item"]:
                yield (event["output_index"], name), event["item"][name]
