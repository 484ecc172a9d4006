"""Buffers that files are read into, over and over: their pages are mapped already, and aligned for
direct I/O."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.interface.blocks import Bytes

KEPT_BYTES: Final = 64 << 20
"""Most bytes of memory that nobody uses which are kept for the next read."""
_LEAST_BYTES: Final = 4 << 20


def pages(size: int) -> Bytes:
    """``size`` bytes, which begin with a page."""
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)


class ReadMemory:
    """Pieces of memory, each of which begins with a page. Any thread.

    One that is not given back is freed with its last view; the next one is new memory then, whose
    pages the system has to clear first, which takes as long as copying them.
    """

    def __init__(
        self, kept_bytes: int = KEPT_BYTES, allocate: Callable[[int], Bytes] = pages
    ) -> None:
        """``allocate``: gives memory of a size, beginning with a page, until its last view."""
        self._kept_bytes = kept_bytes
        self._allocate = allocate
        self._mutex = threading.Lock()
        self._free: list[Bytes] = []

    @property
    def free_bytes(self) -> int:
        """Bytes of memory that nobody uses."""
        return sum(map(len, self._free))

    def take(self, size: int) -> Bytes:
        """Memory of at least ``size`` bytes, of any content."""
        with self._mutex:
            for i in reversed(range(len(self._free))):  # the last one may be in a core's cache yet
                if len(self._free[i]) >= size:
                    return self._free.pop(i)
        return self._allocate(max(size, _LEAST_BYTES))

    def give(self, memory: Bytes) -> None:
        """Take back what :meth:`take` has given, whole; nobody looks at it any more."""
        with self._mutex:
            if self.free_bytes + len(memory) <= self._kept_bytes:
                self._free.append(memory)


def joined(rows: Bytes, size: int) -> Bytes:
    """The first ``size`` bytes of each row of ``[rows, bytes]``, contiguous, moved in that memory
    to lie one behind the other."""
    memory: Bytes = rows.reshape(-1)
    if rows.shape[1] != size:
        for i in range(1, len(rows)):
            memory[i * size : (i + 1) * size] = rows[i, :size]
    return memory[: len(rows) * size]
