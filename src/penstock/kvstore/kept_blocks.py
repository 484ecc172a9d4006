"""Until when blocks are to stay that somebody has asked to."""

from __future__ import annotations

from typing import Final

from penstock.kvstore.blocks import Name

MOST_KEPT_S: Final = 86_400.0
"""Longest time for which blocks are kept at once."""
_LEAST_SWEPT: Final = 1024


class KeptBlocks:
    """Times until which blocks are kept, whether they are there or come later; at most so many, so
    that there are always others that make room. Knows no clock. Not thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._until: dict[Name, float] = {}
        self._sweep_at = _LEAST_SWEPT

    def __len__(self) -> int:
        return len(self._until)

    def until(self, name: Name) -> float:
        """0 for a block that nobody has asked for."""
        return self._until.get(name, 0.0)

    def add(self, name: Name, until: float, now: float) -> bool:
        """Keep a block until a time, or longer if that was asked for before; returns False, and
        does not, where there are too many."""
        before = self._until.get(name)
        if before is None:
            if len(self._until) >= min(self._most, self._sweep_at):
                self._sweep(now)
            if len(self._until) >= self._most:
                return False
        self._until[name] = until if before is None else max(before, until)
        return True

    def _sweep(self, now: float) -> None:
        """Forget the times that are over. Looks at all, so it waits until there are twice as
        many, or there is no room."""
        self._until = {name: until for name, until in self._until.items() if until > now}
        self._sweep_at = max(2 * len(self._until), _LEAST_SWEPT)
