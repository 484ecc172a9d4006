"""What streams of all dialects share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import msgspec

from penstock.router.reading import read
from penstock.router.resume.framing import EVENTS, Framing
from penstock.router.resume.parts import Parts, strange

FOLD_BYTES: Final = 16 << 10
"""Bytes of events that are kept as they were sent before they are read."""
_UNREADABLE: Final = (AttributeError, TypeError, KeyError, ValueError)
"""What reading an event raises that has another form."""

Event = dict[str, Any]


class Stream(ABC):
    """What a client has of a stream, and what it lacks of another run.

    Events of the first run are given to :meth:`add`, those of another one to :meth:`rest`, after
    :meth:`begin`. A dialect says what the parts of its events are, and which event is the last.
    """

    framing: ClassVar[Framing] = EVENTS

    def __init__(self) -> None:
        self._raw = bytearray()
        self.parts = Parts()
        """What the client has, as far as it was read."""

    def add(self, events: bytes) -> None:
        """Note whole events of the first run, as they were sent."""
        self._raw += events
        if len(self._raw) > FOLD_BYTES:
            self.fold()

    def fold(self) -> None:
        """Read what was only kept so far. Raises DivergedError for what is no event."""
        raw = bytes(self._raw)
        self._raw.clear()
        for data in self.framing.datas(raw):
            try:
                self._note(data)
            except _UNREADABLE:
                raise strange() from None

    def begin(self) -> None:
        """Another run begins. Raises as :meth:`fold`."""
        self.fold()
        self.parts.begin()

    def rest(self, data: bytes) -> bytes | None:
        """What to send for an event of the run, of which ``data`` is the data; None: the client
        has it. Raises DivergedError."""
        try:
            return self._rest(data)
        except _UNREADABLE:
            raise strange() from None

    def is_over(self, events: bytes) -> bool:
        """Whether the last of these whole events is the stream's. Raises DivergedError for what is
        no event."""
        data = self.framing.last(events)
        return bool(data) and self._is_last(decoded(data))

    def ended(self) -> bool:
        """Whether the stream is over because the body of the run is, to its end, though no event
        was the last. Raises DivergedError."""
        return False

    @abstractmethod
    def _note(self, data: bytes) -> None:
        """Note an event of the first run."""

    @abstractmethod
    def _rest(self, data: bytes) -> bytes | None:
        """As :meth:`rest`; may raise what reading a dictionary of another form raises."""

    @abstractmethod
    def _is_last(self, event: Event) -> bool: ...

    def _event(self, event: Event) -> bytes:
        """An event as it is sent."""
        return self.framing.event(msgspec.json.encode(event))


def decoded(data: bytes) -> Event:
    """Raises DivergedError for what is no JSON object."""
    event = read(data, dict[str, Any])
    if event is None:
        raise strange()
    return event


def common(value: Any, own: frozenset[str]) -> Any:
    """The same without the fields that each run has of its ``own``."""
    if isinstance(value, dict):
        return {key: common(each, own) for key, each in value.items() if key not in own}
    if isinstance(value, list):
        return [common(each, own) for each in value]
    return value
