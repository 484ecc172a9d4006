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
from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import PenstockError

_FOLD_BYTES: Final = 16 << 10
"""Bytes of events that are kept as they were sent before they are read."""
_GROWING: Final = frozenset(
    {
        *("text", "content", "reasoning_content", "refusal", "arguments"),
        *("token_ids", "tokens", "token_logprobs", "top_logprobs", "text_offset"),
    }
)
"""Parts of a choice that an event continues; they are texts and lists."""
_BY_INDEX: Final = "tool_calls"
_NAMES: Final = frozenset({"id", "created"})
"""What each run gives a name or a time of its own."""
_PER_EVENT: Final = frozenset({"id", "created", "object", "model", "choices", "usage"})
_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"

Path = tuple[str | int, ...]
Event = dict[str, Any]


class DivergedError(PenstockError):
    """Another replica's answer is not the one that the client has the beginning of."""


class _Part(NamedTuple):
    path: Path
    value: Any
    grows: bool


class Delivered:
    """What a client has of a stream."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._parts: dict[Path, Any] = {}
        self.first: Event = {}
        """The first event, whose names and times are the stream's."""
        self.totals = False
        """Whether it has the event without choices, which tells the usage."""

    def add(self, events: bytes) -> None:
        """Note whole events as they were sent."""
        self._raw += events
        if len(self._raw) > _FOLD_BYTES:
            self.parts()

    def parts(self) -> dict[Path, Any]:
        """The value of each part so far, by its path."""
        if self._raw:
            for data in datas(bytes(self._raw)):
                if data != _DONE:
                    self._take(decoded(data))
            self._raw.clear()
        return self._parts

    def _take(self, event: Event) -> None:
        if not self.first:
            self.first = event
        if not event.get("choices"):
            self.totals = True
        for part in parts_of(event):
            if part.grows and part.path in self._parts:
                self._parts[part.path] = _grown(self._parts[part.path], part.value)
            else:
                self._parts[part.path] = part.value


class Resumption:
    """Takes the events of a run from its beginning, and gives what the client lacks.

    What it gives counts as delivered, so that a further run can follow this one.
    """

    def __init__(self, delivered: Delivered) -> None:
        self._delivered = delivered
        self._has = delivered.parts()
        self._first = delivered.first
        self._come: dict[Path, int] = {}
        """How long each growing part of this run is so far."""

    def take(self, data: bytes) -> bytes | None:
        """The event to send for one of the new run, without ``data: ``; None: the client has it.

        Raises DivergedError.
        """
        if data == _DONE:
            self._check_reached()
            return data
        event = decoded(data)
        if "error" in event:
            return data
        try:
            return self._fresh(event)
        except (AttributeError, TypeError, KeyError):
            raise _strange() from None

    def _fresh(self, event: Event) -> bytes | None:
        fresh: dict[Path, Any] = {}
        for part in parts_of(event):
            left = self._left(part)
            if left is not None:
                fresh[part.path] = left
        if not fresh and event.get("choices"):
            return None
        if not event.get("choices"):
            if self._delivered.totals:
                return None
            self._delivered.totals = True
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
        return msgspec.json.encode(changed)

    def _left(self, part: _Part) -> Any:
        """What the client lacks of a part; None: nothing."""
        path, value, has = part.path, part.value, self._has
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

    def _check_reached(self) -> None:
        """Raise DivergedError if the client has more than the whole new run."""
        for path, value in self._has.items():
            if path[-1] in _GROWING and len(value) > self._come.get(path, 0):
                raise _diverged(path)


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


def parts_of(event: Event) -> Iterator[_Part]:
    """The parts of an event, but for names of the run and what each event has."""
    for name, value in event.items():
        if name not in _PER_EVENT and value is not None:
            yield _Part((name,), value, False)
    for choice in event.get("choices") or ():
        yield from _parts(choice, ("choices", choice.get("index", 0)))


def _parts(value: dict[str, Any], path: Path) -> Iterator[_Part]:
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
            yield _Part(here, each, True)
        else:
            yield _Part(here, each, False)


def datas(events: bytes) -> Iterator[bytes]:
    """The data of whole events; comments are left out."""
    for each in events.split(b"\n\n"):
        if each.startswith(_DATA):
            yield each[len(_DATA) :]


def decoded(data: bytes) -> Event:
    """Raises DivergedError for what is no JSON object."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _strange() from None


def _grown(value: Any, more: Any) -> Any:
    if isinstance(value, list):
        value.extend(more)
        return value
    return value + more


def _strange() -> DivergedError:
    return DivergedError("an event of the stream is not what a server of Penstock's sends")


def _diverged(path: Path) -> DivergedError:
    where = ".".join(map(str, path))
    return DivergedError(
        f"another replica answered differently ({where}): replicas of one model must have the same "
        "weights, options and instruction sets to continue each other's streams"
    )
