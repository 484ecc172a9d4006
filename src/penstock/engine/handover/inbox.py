"""What threads have received for the engine's own, which is woken by it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from penstock.processes.wake import Wake

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue from threads to the engine's, bounded by the bytes of what waits in it."""

    def __init__(self, wake: Wake, most_bytes: int) -> None:
        self._wake = wake
        self._most_bytes = most_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False

    def __bool__(self) -> bool:
        """Whether something waits. Any thread may ask."""
        return bool(self._items)

    def put(self, item: T, num_bytes: int = 0) -> None:
        """Add an item; waits while others with bytes fill the inbox, for no item without any."""
        with self._changed:
            while num_bytes and self._bytes and self._bytes + num_bytes > self._most_bytes:
                if self._closed:
                    return
                self._changed.wait()
            self._items.append((item, num_bytes))
            self._bytes += num_bytes
        self._wake.set()

    def take(self, budget: int = 1 << 62) -> list[T]:
        """Remove the next items, at least one if there is one, of about ``budget`` bytes."""
        taken: list[T] = []
        with self._changed:
            while self._items and budget > 0:
                item, num_bytes = self._items.popleft()
                self._bytes -= num_bytes
                budget -= num_bytes
                taken.append(item)
            self._changed.notify_all()
        return taken

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
