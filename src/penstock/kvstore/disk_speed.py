"""How fast a disk is, and so whether it is read through the page cache."""

from __future__ import annotations

from typing import Final

LEAST_BANDWIDTH: Final = 300e6
"""Bytes a second below which a disk is read through the page cache, which keeps what was read as
long as there is memory to spare. Copies are little of the time that such a disk takes, and what is
found in memory comes ten times as fast."""
_MEMORY_BYTES: Final = 64 << 20
"""Bytes after which an older measurement weighs less than half."""


class DiskSpeed:
    """What reads took lately, several of which may have been under way at a time."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0
        self._until = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether what was read came slowly. Nothing is known at first."""
        return self._bytes < LEAST_BANDWIDTH * self._seconds

    def add(self, size: int, began: float, ended: float) -> float:
        """Note a read, in the order in which reads end; returns the seconds of it in which none of
        those noted before was under way."""
        seconds = max(ended - max(began, self._until), 0.0)
        self._until = max(ended, self._until)
        kept = _MEMORY_BYTES / (_MEMORY_BYTES + size)
        self._bytes = self._bytes * kept + size
        self._seconds = self._seconds * kept + seconds
        return seconds
