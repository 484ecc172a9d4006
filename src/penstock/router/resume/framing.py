"""How a stream is cut into events: server-sent events, or lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple


class Framing(NamedTuple):
    """The form of a stream whose events hold JSON without line breaks."""

    media_type: str
    mark: bytes
    """What stands before an event's data, on its line."""
    end: bytes
    """What ends an event."""

    def is_of(self, content_type: str) -> bool:
        """Whether an answer of this type, in small letters, is such a stream."""
        return content_type.startswith(self.media_type)

    def whole(self, waiting: bytes) -> int:
        """How many of these bytes are whole events."""
        return waiting.rfind(self.end) + len(self.end) if self.end in waiting else 0

    def datas(self, events: bytes) -> Iterator[bytes]:
        """The data of whole events, each of one line; comments are left out."""
        for line in events.split(b"\n"):
            if line and line.startswith(self.mark):
                yield line[len(self.mark) :]

    def last(self, events: bytes) -> bytes:
        """The data of the last of whole events; empty where that is a comment."""
        event = events.rstrip(b"\n").rpartition(self.end)[2]
        return next(self.datas(event), b"")

    def event(self, data: bytes) -> bytes:
        """The event that has this data."""
        return self.mark + data + self.end

    def find(self, events: bytes, beginning: bytes) -> int:
        """Where in whole events the line of one begins whose data begins with this; -1: nowhere."""
        line = self.mark + beginning
        if events.startswith(line):
            return 0
        before = events.find(b"\n" + line)
        return before if before < 0 else before + 1


EVENTS: Final = Framing("text/event-stream", b"data: ", b"\n\n")
LINES: Final = Framing("application/x-ndjson", b"", b"\n")
FRAMINGS: Final = (EVENTS, LINES)


def framing_of(content_type: str) -> Framing | None:
    """That of an answer of this type, in small letters; None: it is no stream of events."""
    return next((each for each in FRAMINGS if each.is_of(content_type)), None)
