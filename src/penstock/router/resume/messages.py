"""Streams of ``/v1/messages``, in Anthropic's dialect.

Each event has a type, and those of a block have its place. Those that grow a block
(``content_block_delta``) are cut anywhere, and each other one comes once. The message and its calls
have names that each run draws for itself, and the client keeps those of the run that began them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.router.resume.parts import Part
from penstock.router.resume.stream import Event, Stream, common, decoded

_OWN: Final = frozenset({"id", "usage"})
"""What each run has of its own."""
_GROWN: Final = ("text", "thinking", "partial_json")
_LAST: Final = "message_stop"
_WHOLE: Final = -1
"""The place of events that are of no block."""


class MessageStream(Stream):
    """A stream of messages."""

    def _note(self, data: bytes) -> None:
        for part in parts_of(decoded(data)):
            self.parts.add(part)

    def _rest(self, data: bytes) -> bytes | None:
        event = decoded(data)
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
        return b"event: %b\n%b" % (kind.encode(), self._event(event))

    def _is_last(self, event: Event) -> bool:
        return event.get("type") == _LAST


def parts_of(event: Event) -> Iterator[Part]:
    """The parts of an event, without what each run has of its own."""
    kind, place = event["type"], event.get("index", _WHOLE)
    if kind == "content_block_delta":
        (text,) = (value for name, value in event["delta"].items() if name in _GROWN)
        yield Part((place, kind, "delta"), text, True)
    else:
        yield Part((place, kind), common(event, _OWN), False)
