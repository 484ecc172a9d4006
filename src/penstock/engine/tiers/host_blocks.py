"""Blocks in pinned memory of the host, between which and its own a device copies by itself."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

from penstock.cache.prefix import Key
from penstock.cache.retention import Lru, Retention
from penstock.engine.tiers.block_store import Due, StoreFigures
from penstock.interface.blocks import BlockRows, Bytes
from penstock.interface.messages import TierName
from penstock.kvstore.blocks import Name, NewBlock, name_of
from penstock.kvstore.kept_blocks import KeptBlocks
from penstock.kvstore.pieces import Piece, Wanted

PIECE_BYTES: Final = 1 << 30
"""About as many bytes of memory are asked of the system at once."""
KEPT_SHARE: Final = 0.5
"""The part of the blocks that may be kept until a time."""


def allocated(size: int, slot_bytes: int, memory: Callable[[int], Bytes]) -> list[Bytes]:
    """Return at most ``size`` bytes of memory, in pieces of whole slots. Raises MemoryError."""
    slots, each = size // slot_bytes, max(PIECE_BYTES // slot_bytes, 1)
    return [memory(min(each, slots - first) * slot_bytes) for first in range(0, slots, each)]


class HostBlocks:
    """:class:`~penstock.engine.tiers.block_store.BlockStore` in memory, cut into slots of one size,
    as the pool's pages are. Blocks are copied into their slots, and out of them, by whoever has the
    pool: nothing is read or written here, and what is read has come at once.

    A slot is *coming* from :meth:`reserve` to :meth:`write`; then its block can be found. While a
    piece lends it (from :meth:`read` to :meth:`done`), nothing else is put into it. What makes room
    is the end of the chain that was used least recently (``cache.retention``). Blocks have no
    checksums, as those of the pool have none: both lie in memory that corrects errors, or is
    trusted without.
    """

    name: Final[TierName] = "host"
    lasts = is_off = False

    def __init__(
        self,
        memory: Sequence[Bytes],
        group_bytes: Sequence[int],
        windowed: Collection[int] = (),
        retention: Retention[Name] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``memory``: pieces, each of whole slots of ``max(group_bytes)``, all but the last equal.
        ``windowed``: the groups whose blocks are of use without all those before them.
        ``retention`` is empty."""
        self._memory = tuple(memory)
        self._group_bytes = tuple(group_bytes)
        self._slot_bytes = max(group_bytes)
        self._windowed = frozenset(windowed)
        self._retention = Lru[Name]() if retention is None else retention
        self._now = now
        self._each = len(self._memory[0]) // self._slot_bytes if self._memory else 1
        self.num_slots = sum(len(piece) // self._slot_bytes for piece in self._memory)
        self._free = list(range(self.num_slots - 1, -1, -1))
        self._slots: dict[Name, int] = {}
        self._coming: dict[Name, tuple[int, Name | None]] = {}
        """The slot of each, and the block before it in its chain."""
        self._lent: Counter[int] = Counter()
        """How many pieces have each slot."""
        self._names: dict[int, Name] = {}
        """What is in slots that are lent and can be found."""
        self._forgotten: set[int] = set()
        """Slots that are lent, and free when they are not."""
        self._kept = KeptBlocks(int(KEPT_SHARE * self.num_slots))
        self._arrived: deque[Piece] = deque()
        self._written = self._read = self._evicted = 0
        self._read_s = 0.0

    def __len__(self) -> int:
        return len(self._slots)

    def holds(self, key: Key, group: int) -> bool:
        return name_of(key, group) in self._slots

    def use(self, keys: Sequence[Key], group: int) -> None:
        now = self._now()
        for key in reversed(keys):  # of a chain the tail makes room before the head
            name = name_of(key, group)
            if name in self._slots:
                self._retention.use(name, now)

    def keep(self, keys: Sequence[Key], seconds: float) -> None:
        now = self._now()
        for name in [name_of(key, g) for key in keys for g in range(len(self._group_bytes))]:
            if not self._kept.add(name, now + seconds, now):
                break
            if name in self._slots:
                self._retention.keep(name, now + seconds)

    @property
    def room(self) -> int:
        """Bytes of all slots but those that are coming or lent: others may have to stay, too, which
        :meth:`reserve` sees."""
        return (self.num_slots - len(self._coming) - len(self._lent)) * self._slot_bytes

    def reserve(self, due: Sequence[Due], group: int) -> Sequence[Bytes]:
        parents = {each.key: self._parent(each, group) for each in due}
        if len(due) > len(self._free):
            self._make_room(len(due) - len(self._free), due, group)
        rows = []
        for each in due[: len(self._free)]:
            slot = self._free.pop()
            self._coming[name_of(each.key, group)] = slot, parents[each.key]
            rows.append(self._row(slot, group))
        return rows

    def release(self, due: Sequence[Due], group: int) -> None:
        for each in due:
            slot, _ = self._coming.pop(name_of(each.key, group))
            self._free.append(slot)

    def write(self, blocks: Sequence[NewBlock]) -> None:
        """Find blocks from now on, which were copied into the memory that was reserved for them."""
        now = self._now()
        for block in reversed(blocks):  # of a chain the head was used last
            slot, parent = self._coming.pop(block.name)
            self._slots[block.name] = slot
            self._retention.add(block.name, parent, now)
            if until := self._kept.until(block.name):
                self._retention.keep(block.name, until)
            self._written += len(block.data)

    def drop(self, keys: Sequence[Key], group: int) -> None:
        for key in keys:
            name = name_of(key, group)
            if name in self._slots:
                self._forget(name)

    def read(self, number: int, pieces: Sequence[Wanted]) -> None:
        for wanted in pieces:
            slots: list[int] = []
            for key in wanted.keys:
                name = name_of(key, wanted.group)
                slot = self._slots.get(name)
                if slot is None:
                    break
                self._names[slot] = name
                slots.append(slot)
            self._lent.update(slots)
            rows = tuple(self._row(slot, wanted.group) for slot in slots)
            self._read += sum(map(len, rows))
            piece = Piece(number, wanted, len(slots), BlockRows(rows), 0.0, 0.0)
            self._arrived.append(piece._replace(slots=tuple(slots)))

    def cancel(self, number: int) -> None:
        """All pieces have come."""

    def done(self, piece: Piece, seconds: float = 0.0) -> None:
        self._read_s += seconds
        for slot in piece.slots:
            self._lent[slot] -= 1
            if not self._lent[slot]:
                del self._lent[slot]
                self._names.pop(slot, None)
                if slot in self._forgotten:
                    self._forgotten.remove(slot)
                    self._free.append(slot)

    def arrived(self) -> Sequence[Piece]:
        pieces = tuple(self._arrived)
        self._arrived.clear()
        return pieces

    @property
    def has_arrived(self) -> bool:
        return bool(self._arrived)

    def wait(self, seconds: float) -> None:
        """Nothing is ever waited for."""

    def clear(self) -> None:
        for name in list(self._slots):
            self._forget(name)

    def stats(self) -> StoreFigures:
        return StoreFigures(
            blocks=len(self._slots),
            pinned=0,
            unwritten_bytes=0,
            evicted=self._evicted,
            written_bytes=self._written,
            read_bytes=self._read,
            read_seconds=self._read_s,
            damaged=0,
            failures=0,
        )

    def close(self, seconds: float) -> None:
        """Forget everything; no copies may be on their way."""
        self._memory = ()

    def check_integrity(self) -> None:
        """Raise AssertionError unless every slot is in one place, and what is retained is what can
        be found."""
        coming = [slot for slot, _ in self._coming.values()]
        everywhere = [*self._free, *self._slots.values(), *coming, *self._forgotten]
        assert sorted(everywhere) == list(range(self.num_slots))
        assert len(self._retention) == len(self._slots)
        assert all(name in self._retention for name in self._slots)
        assert self._forgotten <= self._lent.keys()
        assert not self._lent.keys() & {*self._free, *coming}
        assert self._names.keys() <= self._lent.keys()

    def _parent(self, due: Due, group: int) -> Name | None:
        return None if group in self._windowed else name_of(due.parent, group)

    def _make_room(self, count: int, due: Sequence[Due], group: int) -> None:
        """Let up to so many blocks go: none that are lent, and nothing that comes before those that
        are coming, or ``due``."""
        parents = [parent for _, parent in self._coming.values()]
        parents += [self._parent(each, group) for each in due]
        staying = {*self._names.values(), *(parent for parent in parents if parent is not None)}
        for name in self._retention.victims(count, self._now(), staying):
            self._forget(name)
            self._evicted += 1

    def _forget(self, name: Name) -> None:
        slot = self._slots.pop(name)
        self._retention.drop(name)
        if self._lent[slot]:
            self._names.pop(slot, None)
            self._forgotten.add(slot)
        else:
            self._free.append(slot)

    def _row(self, slot: int, group: int) -> Bytes:
        """The memory of a slot, as long as a block of the group."""
        piece, place = divmod(slot, self._each)
        start = place * self._slot_bytes
        return self._memory[piece][start : start + self._group_bytes[group]]
