"""The parts of a stream: what a client has of each, and what it lacks of another run."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock.errors import PenstockError

NAMES: Final = frozenset({"id", "created"})
"""What each run gives a name or a time of its own."""

Path = tuple[str | int, ...]


class DivergedError(PenstockError):
    """Another replica's answer is not the one that the client has the beginning of."""


class Part(NamedTuple):
    path: Path
    value: Any
    grows: bool
    """Whether events continue it: it is a text or a list. All else comes once."""


class Parts:
    """The parts of a stream that a client has, by their paths, and those of another run."""

    def __init__(self) -> None:
        self.has: dict[Path, Any] = {}
        self._growing: set[Path] = set()
        self._come: dict[Path, int] = {}
        """How long each growing part of the latest run is so far."""

    def add(self, part: Part) -> None:
        """Note a part of an event that was sent."""
        if part.grows:
            self._growing.add(part.path)
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
            if has[path] != value and path[-1] not in NAMES:
                raise _diverged(path)
            return None
        self._growing.add(path)
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
        for path in self._growing:
            if len(self.has[path]) > self._come.get(path, 0):
                raise _diverged(path)


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
