"""A stream that another replica begins again, without what the client has already.

A server of Penstock's gives the same answer to the same request with the same seed, bit by bit. So
a stream that broke off is continued by sending the request once more, to another replica: what
comes is compared with what the client has and dropped, up to where the client's ends. This holds
for whatever the request asks for (grammars, tools, stop strings, log-probabilities, several
choices), since it is the same request.

Events of two runs are cut at different places and have names and times of their own, so they are
compared part by part: texts and lists grow from event to event, all else comes once. The client
keeps the first run's id and time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from penstock.errors import PenstockError
from penstock.router.reading import read

FOLD_BYTES: Final = 16 << 10
"""Bytes of events that are kept as they were sent before they are read."""
_GROWING: Final = frozenset(
    {
        *("delta", "logprobs", "text", "content", "reasoning_content", "refusal", "arguments"),
        *("token_ids", "tokens", "token_logprobs", "top_logprobs", "text_offset"),
    }
)
"""Parts that an event continues; they are texts and lists."""
_BY_INDEX: Final = "tool_calls"
_NAMES: Final = frozenset({"id", "created"})
"""What each run gives a name or a time of its own."""
_PER_EVENT: Final = frozenset({"id", "created", "object", "model", "choices", "usage"})
_DATA: Final = b"data: "
DONE: Final = b"[DONE]"

Path = tuple[str | int, ...]
Event = dict[str, Any]


class DivergedError(PenstockError):
    """Another replica's answer is not the one that the client has the beginning of."""


class Part(NamedTuple):
    path: Path
    value: Any
    grows: bool


class Parts:
    """The parts of a stream that a client has, by their paths, and those of another run."""

    def __init__(self) -> None:
        self.has: dict[Path, Any] = {}
        self._come: dict[Path, int] = {}
        """How long each growing part of the latest run is so far."""

    def add(self, part: Part) -> None:
        """Note a part of an event that was sent."""
        if part.grows and part.path in self.has:
            self.has[part.path] = _grown(self.has[part.path], part.value)
        else:
            self.has[part.path] = part.value

    def begin(self) -> None:
        """Another run begins."""
        self._come = {}

    def left(self, part: Part) -> Any:
        """What the client lacks of a part of the run, and has from now on; None: nothing.

        Raises DivergedError.
        """
        path, value, has = part.path, part.value, self.has
        if not part.grows:
            if path not in has:
                has[path] = value
                return value
            if has[path] != value and path[-1] not in _NAMES:
                raise _diverged(path)
            return None
        before = self._come.get(path, 0)
        self._come[path] = before + len(value)
        known = has.get(path)
        if known is None:
            has[path] = value
            return value
        already = known[before : before + len(value)]
        if value[: len(already)] != already:
            raise _diverged(path)
        left = value[len(already) :]
        if not left:
            return None
        has[path] = _grown(known, left)
        return left

    def check_reached(self) -> None:
        """Raise DivergedError if the client has more of a text or a list than the whole run."""
        for path, value in self.has.items():
            if path[-1] in _GROWING and len(value) > self._come.get(path, 0):
                raise _diverged(path)


class Stream(Protocol):
    """What a client has of a stream of one dialect, and what it lacks of another run."""

    parts: Parts
    """What the client has, as far as it was read."""

    def add(self, events: bytes) -> None:
        """Note whole events of the first run, as they were sent."""

    def fold(self) -> None:
        """Read what was only kept so far."""

    def begin(self) -> None:
        """Another run begins: its events are given to :meth:`rest`."""

    def rest(self, data: bytes) -> bytes | None:
        """What to send for an event of the run, of which ``data`` is the data; None: the client
        has it. Raises DivergedError."""

    def is_over(self, events: bytes) -> bool:
        """Whether the last of these events is the stream's."""


class ChoiceStream:
    """A stream of completions or of a chat."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self.parts = Parts()
        self._first: Event = {}  # whose names and times are the stream's
        self._totals = False  # whether the event came that has no choices, and tells the usage

    def add(self, events: bytes) -> None:
        self._raw += events
        if len(self._raw) > FOLD_BYTES:
            self.fold()

    def fold(self) -> None:
        """Read what was only kept so far."""
        for data in datas(bytes(self._raw)):
            if data == DONE:
                continue
            event = decoded(data)
            self._first = self._first or event
            self._totals = self._totals or not event.get("choices")
            for part in parts_of(event):
                self.parts.add(part)
        self._raw.clear()

    def begin(self) -> None:
        self.fold()
        self.parts.begin()

    def rest(self, data: bytes) -> bytes | None:
        if data == DONE:
            self.parts.check_reached()
            return event_of(data)
        event = decoded(data)
        if "error" in event:
            return event_of(data)
        try:
            return self._fresh(event)
        except (AttributeError, TypeError, KeyError):
            raise strange() from None

    def is_over(self, events: bytes) -> bool:
        return events.endswith(event_of(DONE))

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
            if name in _NAMES:
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
        return event_of(msgspec.json.encode(changed))


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


def datas(events: bytes) -> Iterator[bytes]:
    """The data of whole events, each of one line; comments are left out."""
    for line in events.split(b"\n"):
        if line.startswith(_DATA):
            yield line[len(_DATA) :]


def event_of(data: bytes) -> bytes:
    """The event that has this data."""
    return _DATA + data + b"\n\n"


def decoded(data: bytes) -> Event:
    """Raises DivergedError for what is no JSON object."""
    event = read(data, dict[str, Any])
    if event is None:
        raise strange()
    return event


def _grown(value: Any, more: Any) -> Any:
    if isinstance(value, list):
        value.extend(more)
        return value
    return value + more


def strange() -> DivergedError:
    return DivergedError("an event of the stream is not what a server of Penstock's sends")


def _diverged(path: Path) -> DivergedError:
    where = ".".join(map(str, path))
    return DivergedError(
        f"another replica answered differently ({where}): replicas of one model must have the same "
        "weights, options and instruction sets to continue each other's streams"
    )
