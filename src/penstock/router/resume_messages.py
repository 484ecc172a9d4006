"""Streams of ``/v1/messages`` that begin again: Anthropic's dialect of ``resume.py``.

Each event has a type, and those of a block have its place. Those that grow a block
(``content_block_delta``) are cut anywhere, and each other one comes once. The message and its calls
have names that each run draws for itself, and the client keeps those of the run that began them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from penstock.router.resume import (
    FOLD_BYTES,
    Event,
    Part,
    Parts,
    datas,
    decoded,
    strange,
)

_OWN: Final = frozenset({"id", "usage"})
"""What each run has of its own."""
_GROWN: Final = ("text", "thinking", "partial_json")
_LAST: Final = "message_stop"
_WHOLE: Final = -1
"""The place of events that are of no block."""


class MessageStream:
    """A stream of messages; its methods are those of ``resume.Stream``."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self.parts = Parts()

    def add(self, events: bytes) -> None:
        self._raw += events
        if len(self._raw) > FOLD_BYTES:
            self.fold()

    def fold(self) -> None:
        """Read what was only kept so far."""
        for data in datas(bytes(self._raw)):
            for part in parts_of(decoded(data)):
                self.parts.add(part)
        self._raw.clear()

    def begin(self) -> None:
        self.fold()
        self.parts.begin()

    def rest(self, data: bytes) -> bytes | None:
        event = decoded(data)
        try:
            return self._rest(event)
        except (AttributeError, TypeError, KeyError):
            raise strange() from None

    def is_over(self, events: bytes) -> bool:
        last = events.rstrip(b"\n").rpartition(b"\n\n")[2]
        return any(decoded(data).get("type") == _LAST for data in datas(last))

    def _rest(self, event: Event) -> bytes | None:
        kind = event["type"]
        if kind != "error":
            if kind == _LAST:
                self.parts.check_reached()
            fresh = False
            for part in parts_of(event):
                left = self.parts.left(part)
                fresh = fresh or left is not None
                if part.grows and left is not None:
                    (name,) = (each for each in _GROWN if each in event["delta"])
                    event["delta"][name] = left
            if not fresh:
                return None
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(event))


def parts_of(event: Event) -> Iterator[Part]:
    """The parts of an event, without what each run has of its own."""
    kind, place = event["type"], event.get("index", _WHOLE)
    if kind == "content_block_delta":
        (text,) = (value for name, value in event["delta"].items() if name in _GROWN)
        yield Part((place, kind, "delta"), text, True)
    else:
        yield Part((place, kind), _common(event), False)


def _common(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _common(each) for key, each in value.items() if key not in _OWN}
    if isinstance(value, list):
        return [_common(each) for each in value]
    return value
