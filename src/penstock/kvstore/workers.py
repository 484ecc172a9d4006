"""The threads of a store: one writes and keeps house, others read."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from penstock.cache.prefix import Key
from penstock.interface.blocks import BlockBytes, Bytes
from penstock.kvstore.block_reader import ReadBlocks
from penstock.kvstore.blocks import Checksum, NewBlock
from penstock.kvstore.disk_speed import DiskSpeed
from penstock.kvstore.growth import FULL_S
from penstock.kvstore.pieces import Piece, Wanted
from penstock.kvstore.places import Place
from penstock.kvstore.read_memory import ReadMemory, pages
from penstock.kvstore.store import KvStore

QUEUE_BYTES: Final = 64 << 20
"""Bytes of blocks that may wait to be written. What comes then stays in the cache, and is written
if it is still there when there is room."""
READERS: Final = 2
"""Threads that read: a second one lets the disk have the next piece while one is handed over. More
read no faster (docs/kv-tiers.md has the measurements)."""
REFRESH_S: Final = 1.0
SYNC_BYTES: Final = 256 << 20
"""Bytes after which the writer waits for the disk: so memory does not fill with what is to be
written, of which a loss of power takes no more."""
RETRY_S: Final = 60.0
"""Seconds for which nothing is written after writing has failed: a full disk stays full for a
while."""

_log = logging.getLogger("penstock.kvstore")


@dataclass
class WorkStats:
    """What the threads did."""

    written_bytes: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    failures: int = 0
    """Writes and reads that the disk or its file system refused."""
    damaged: int = 0
    """Blocks that were read, and not what their checksum says."""


class StoreWorkers:
    """Does a store's work with files in threads of its own, so that no caller waits for a file. All
    methods are for one thread, the engine's.

    What was read is told by ``deliver``, which a reading thread calls. Whatever fails, fails
    quietly for the caller: what cannot be written is not kept, and what cannot be read is not
    found. The log says so, once for each kind of trouble.
    """

    def __init__(
        self,
        store: KvStore,
        deliver: Callable[[Piece], None],
        has_room: Callable[[], None] = lambda: None,
        readers: int = READERS,
        checksum: Checksum | None = None,
        memory: Callable[[int], Bytes] = pages,
    ) -> None:
        """Takes the ``store``. ``has_room`` is called by the writer whenever :attr:`room` has
        grown. With a ``checksum``, these threads take that of blocks that have none, and compare
        those of what they have read; else both is done by whoever copies blocks out of the cache
        and into it. ``memory`` is what blocks are read into."""
        self._store = store
        self._deliver = deliver
        self._has_room = has_room
        self._changed = threading.Condition()
        self._to_write: deque[tuple[tuple[NewBlock, ...], int]] = deque()
        self._to_empty: list[Place] = []
        self._to_clear = False
        self._waiting_bytes = 0
        self._most_waiting = max(QUEUE_BYTES, store.place_bytes)
        self._to_read: deque[tuple[int, Wanted]] = deque()
        self._closing = False
        self._off = False
        self._told: set[str] = set()
        self._retry_at = 0.0
        self._checksum = checksum
        self._memory = ReadMemory(allocate=memory)
        self._speed = DiskSpeed()
        self.stats = WorkStats()
        self._threads = [threading.Thread(target=self._write_all, name="penstock-kv-writer")]
        self._threads += [
            threading.Thread(target=self._read_all, name="penstock-kv-reader")
            for _ in range(readers)
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    @property
    def store(self) -> KvStore:
        return self._store

    @property
    def is_off(self) -> bool:
        """Whether nothing is kept any more, since the directory was removed."""
        return self._off

    @property
    def room(self) -> int:
        """Bytes of blocks that may be given to :meth:`write` now."""
        if self._off or time.monotonic() < self._retry_at:
            return 0
        return max(self._most_waiting - self._waiting_bytes, 0)

    @property
    def unwritten_bytes(self) -> int:
        return self._waiting_bytes

    def write(self, blocks: Sequence[NewBlock]) -> None:
        """Have blocks written that are not there yet."""
        size = sum(len(each.data) for each in blocks)
        with self._changed:
            self._to_write.append((tuple(blocks), size))
            self._waiting_bytes += size
            self._changed.notify_all()

    def drop(self, keys: Sequence[Key], group: int) -> None:
        """Find blocks no longer that are damaged, and have their slots emptied."""
        self._remove_damaged(self._store.drop(keys, group))

    def read(self, number: int, pieces: Sequence[Wanted]) -> None:
        """Have blocks read, one piece after the other, for ``number``."""
        with self._changed:
            self._to_read.extend((number, piece) for piece in pieces)
            self._changed.notify_all()

    def done(self, piece: Piece) -> None:
        """The bytes of a piece are not needed any more; nobody looks at them."""
        if piece.memory is not None:
            self._memory.give(piece.memory)

    def cancel(self, number: int) -> None:
        """Forget what has not been read for ``number``; a piece may still come."""
        with self._changed:
            self._to_read = deque(each for each in self._to_read if each[0] != number)

    def clear(self) -> None:
        """Have all blocks removed, and write none of those that wait."""
        with self._changed:
            self._waiting_bytes -= sum(size for _, size in self._to_write)
            self._to_write.clear()
            self._to_read.clear()
            self._to_clear = True
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """End the threads. What waits to be written may take so many seconds."""
        with self._changed:
            self._closing = True
            self._to_read.clear()
            self._changed.notify_all()
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        with self._changed:
            self._to_write.clear()
        for thread in self._threads:
            thread.join(seconds)
        if not any(thread.is_alive() for thread in self._threads):
            self._store.close()

    def _write_all(self) -> None:
        """The writer's thread."""
        refresh_at, unsynced = 0.0, 0
        while True:
            with self._changed:
                if not (self._has_orders or self._closing):
                    self._changed.wait(REFRESH_S)
                if self._closing and not self._has_orders:
                    break
                blocks, size = self._to_write.popleft() if self._to_write else ((), 0)
                places, self._to_empty = self._to_empty, []
                clear, self._to_clear = self._to_clear, False
            if clear:
                self._try(self._store.clear)
            if places:
                self._try(partial(self._store.empty, places))
            if blocks and self._try(partial(self._write, blocks)):
                self.stats.written_bytes += size
                unsynced += size
                self._tell_if_cramped()
            with self._changed:
                self._waiting_bytes -= size
            if size:
                self._has_room()
            if unsynced and (unsynced >= SYNC_BYTES or not self._to_write):
                self._try(self._store.sync)
                unsynced = 0
            if time.monotonic() >= refresh_at:
                self._try(self._refresh)
                refresh_at = time.monotonic() + REFRESH_S
        self._try(self._store.sync)

    @property
    def _has_orders(self) -> bool:
        """Whether the writer was asked for something that it has not done."""
        return bool(self._to_write or self._to_empty or self._to_clear)

    def _write(self, blocks: Sequence[NewBlock]) -> None:
        if self._checksum is not None:
            blocks = [
                each
                if each.checksum is not None
                else each._replace(checksum=self._checksum(each.data))
                for each in blocks
            ]
        self._store.write(blocks)

    def _refresh(self) -> None:
        if self._store.is_removed and not self._off:
            self._off = True
            self._tell("removed", "the directory of KV blocks was removed; none are kept any more")
        self._store.refresh()
        unreadable = self._store.unreadable
        if unreadable:
            self._tell(
                "unreadable",
                f"files of KV blocks cannot be read, and are left out: check the disk, and remove "
                f"them ({', '.join(sorted(unreadable))})",
            )

    def _tell_if_cramped(self) -> None:
        if self._store.is_cramped:
            self._tell(
                "cramped",
                "the disk is full before the folder of KV blocks has its size: those used least "
                f"recently make room, and to grow is tried every {FULL_S:.0f} s",
            )

    def _try(self, work: Callable[[], object]) -> bool:
        """Do something with files; returns whether that went well."""
        if self._off:
            return False
        try:
            work()
        except OSError as error:
            self.stats.failures += 1
            self._retry_at = time.monotonic() + RETRY_S
            self._tell(
                f"write {error.errno}",
                f"KV blocks cannot be written to disk: {error.strerror or error}; they are kept "
                f"again when they can be, which is tried every {RETRY_S:.0f} s",
            )
            return False
        return True

    def _read_all(self) -> None:
        """A reader's thread."""
        while True:
            with self._changed:
                while not (self._to_read or self._closing):
                    self._changed.wait()
                if self._closing:
                    return
                number, wanted = self._to_read.popleft()
            self._deliver(self._read(number, wanted))

    def _read(self, number: int, wanted: Wanted) -> Piece:
        began, busy = time.perf_counter(), time.thread_time()
        memory, read = None, ReadBlocks(0, BlockBytes.none())
        try:
            memory = self._memory.take(self._store.read_bytes(len(wanted.keys)))
            read = self._store.read(
                wanted.keys, wanted.group, memory, past_cache=not self._speed.is_slow
            )
        except (OSError, MemoryError) as error:
            self._tell(
                f"read {getattr(error, 'errno', None)}",
                "KV blocks cannot be read from disk: "
                f"{getattr(error, 'strerror', None) or error or 'no memory is left'}; they are "
                "computed again",
            )
            with self._changed:
                self.stats.failures += 1
        if read.damaged:
            self._remove_damaged(read.damaged)
        count, content = self._checked(wanted, read.found, read.content)
        busy, now = time.thread_time() - busy, time.perf_counter()
        with self._changed:
            self.stats.damaged += len(read.damaged)
            seconds = self._speed.add(len(content.data), began, now)
            self.stats.read_bytes += len(content.data)
            self.stats.read_seconds += seconds
        if memory is not None and not np.may_share_memory(content.data, memory):
            self._memory.give(memory)
            memory = None
        return Piece(number, wanted, count, content, seconds, busy, memory)

    def _checked(self, wanted: Wanted, count: int, content: BlockBytes) -> tuple[int, BlockBytes]:
        """What was read, up to the first that is damaged, which is dropped."""
        if self._checksum is None or not count:
            return count, content
        rows = content.data.reshape(count, -1)
        for i, (row, checksum) in enumerate(zip(rows, content.checksums, strict=True)):
            if self._checksum(row) != checksum:
                self.drop([wanted.keys[i]], wanted.group)
                with self._changed:
                    self.stats.damaged += 1
                return i, BlockBytes(rows[:i].reshape(-1), content.checksums[:i])
        return count, content

    def _remove_damaged(self, places: Sequence[Place]) -> None:
        """Have the slots emptied of blocks that were dropped, since they are damaged."""
        self._tell(
            "damaged",
            "a KV block on disk is not what its checksum says; it is dropped, and computed again: "
            "if more are (penstock:kv_disk_damaged_blocks_total), check the disk",
        )
        with self._changed:
            self._to_empty += places
            self._changed.notify_all()

    def _tell(self, kind: str, message: str) -> None:
        """Warn of something, the first time."""
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("%s", message)
