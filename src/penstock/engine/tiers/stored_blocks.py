"""Blocks on disk, as the tiers have them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.cache.prefix import Key
from penstock.engine.block_checksum import block_checksum
from penstock.engine.tiers.block_store import Due, StoreFigures
from penstock.interface.blocks import BlockMover, Bytes
from penstock.interface.messages import TierName
from penstock.kvstore.blocks import NewBlock
from penstock.kvstore.pieces import Piece, Wanted
from penstock.kvstore.read_memory import pages
from penstock.kvstore.store import KvStore
from penstock.kvstore.workers import StoreWorkers
from penstock.processes.wake import Wake


class StoredBlocks:
    """:class:`~penstock.engine.tiers.block_store.BlockStore` on disk: a store and its threads."""

    name: Final[TierName] = "disk"
    lasts = True

    def __init__(
        self, store: KvStore, wake: Wake | None = None, mover: BlockMover | None = None
    ) -> None:
        """Takes the ``store``. ``wake`` is set when the engine has work that nobody asked for.
        ``mover``: what copies blocks out of a device and into it, by whose memory they go then and
        whose checksums are taken and compared here."""
        self._store = store
        self._wake = wake
        self._changed = threading.Condition()
        self._arrived: deque[Piece] = deque()
        if mover is None:
            self._workers = StoreWorkers(store, self._deliver, self._woken)
        else:
            self._workers = StoreWorkers(
                *(store, self._deliver, self._woken),
                checksum=block_checksum,
                memory=partial(_memory, mover),
            )

    @property
    def room(self) -> int:
        return self._workers.room

    @property
    def has_arrived(self) -> bool:
        return bool(self._arrived)

    @property
    def is_off(self) -> bool:
        return self._workers.is_off

    def holds(self, key: Key, group: int) -> bool:
        return self._store.holds(key, group)

    def use(self, keys: Sequence[Key], group: int) -> None:
        self._store.use(keys, group)

    def keep(self, keys: Sequence[Key], seconds: float) -> None:
        self._store.keep(keys, seconds)

    def reserve(self, due: Sequence[Due], group: int) -> None:
        """What is to be written may lie anywhere."""

    def release(self, due: Sequence[Due], group: int) -> None:
        """Nothing was reserved."""

    def write(self, blocks: Sequence[NewBlock]) -> None:
        self._workers.write(blocks)

    def drop(self, keys: Sequence[Key], group: int) -> None:
        self._workers.drop(keys, group)

    def read(self, number: int, pieces: Sequence[Wanted]) -> None:
        self._workers.read(number, pieces)

    def done(self, piece: Piece, seconds: float = 0.0) -> None:
        self._workers.done(piece)

    def cancel(self, number: int) -> None:
        self._workers.cancel(number)

    def clear(self) -> None:
        self._workers.clear()

    def arrived(self) -> Sequence[Piece]:
        if not self._arrived:
            return ()
        with self._changed:
            pieces = tuple(self._arrived)
            self._arrived.clear()
        return pieces

    def wait(self, seconds: float) -> None:
        with self._changed:
            if not self._arrived:
                self._changed.wait(seconds)

    def stats(self) -> StoreFigures:
        store, work = self._store.stats, self._workers.stats
        return StoreFigures(
            blocks=len(self._store),
            pinned=self._store.index.num_pinned,
            unwritten_bytes=self._workers.unwritten_bytes,
            evicted=store.evicted,
            written_bytes=work.written_bytes,
            read_bytes=work.read_bytes,
            read_seconds=work.read_seconds,
            damaged=work.damaged,
            failures=work.failures,
        )

    def close(self, seconds: float) -> None:
        self._workers.close(seconds)

    def _deliver(self, piece: Piece) -> None:
        with self._changed:
            self._arrived.append(piece)
            self._changed.notify_all()

    def _woken(self) -> None:
        if self._wake is not None:
            self._wake.set()


def _memory(mover: BlockMover, size: int) -> Bytes:
    """Memory to read files into: the device's, as long as there is some, and else any, from which
    it takes a copy more."""
    try:
        return mover.memory(size)
    except MemoryError:
        return pages(size)
