"""What can be found on disk: blocks are written, read, and make room for others."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.cache.prefix import Key
from penstock.cache.retention import Retention
from penstock.interface.blocks import Bytes
from penstock.kvstore.block_reader import BlockReader, ReadBlocks
from penstock.kvstore.blocks import Name, NewBlock, entries_of, name_of
from penstock.kvstore.cipher import BlockCipher
from penstock.kvstore.clock import SteadyClock
from penstock.kvstore.folder import StoreFolder
from penstock.kvstore.growth import Growth
from penstock.kvstore.layout import SegmentLayout, Uses, pages
from penstock.kvstore.places import Place
from penstock.kvstore.segment import Segment
from penstock.kvstore.slot_index import SlotIndex
from penstock.kvstore.use_notes import UseNotes

KEPT_SHARE: Final = 0.5
"""The part of the limit that blocks may take which are kept until a time."""
_ROUNDS: Final = 4
"""How often other slots are looked for where others were quicker."""
_BROKEN: Final = (errno.EIO, getattr(errno, "EUCLEAN", errno.EIO))
"""Errors by which a disk or file system says that what is there cannot be read any more; the second
one is Linux's."""


@dataclass
class StoreStats:
    """What a store did, in blocks."""

    written: int = 0
    evicted: int = 0
    """Those that made room."""


class KvStore:
    """The blocks of one kind (a model, its weights, the type of its cache) in a directory.

    All processes that have a store of the same kind there find each other's blocks, within the
    second after they call :meth:`refresh`. Any of them writes to any segment, under its lock: so
    there are no owners, and nothing to settle when one of them ends.

    :meth:`holds`, :meth:`read`, :meth:`use`, :meth:`keep` and :meth:`drop` may be called by any
    thread, all others by one, the writer. Methods that read or write raise OSError.
    """

    def __init__(
        self,
        folder: StoreFolder,
        group_bytes: Sequence[int],
        limit: int,
        retention: Retention[Name],
        now: Callable[[], float] | None = None,
        windowed: Collection[int] = (),
        cipher: BlockCipher | None = None,
    ) -> None:
        """``group_bytes``: bytes of a block of each group of layers, as the ``cipher`` makes it,
        where there is one; ``limit``: most bytes of all segments; ``windowed``: groups whose layers
        have a window; ``now``: seconds since 1970. Takes the ``folder``; ``retention`` is empty."""
        self._cipher = cipher
        self._folder = folder
        self._group_bytes = tuple(group_bytes)
        self._slot_bytes = pages(max(group_bytes))
        self._now = SteadyClock() if now is None else now
        self._growth = Growth(folder, self._slot_bytes, limit, self._now)
        self._index = SlotIndex(
            self._group_bytes, retention, windowed, int(limit * KEPT_SHARE) // self._slot_bytes
        )
        self._reader = BlockReader(self._index, self._group_bytes, cipher)
        self._notes = UseNotes()
        self.stats = StoreStats()
        self.unreadable: set[str] = set()
        """Names of segments whose head or tables the disk cannot read: they are left out."""
        try:
            self._open_segments()
        except BaseException:
            self.close()
            raise

    @property
    def is_removed(self) -> bool:
        """Whether somebody has removed the directory."""
        return self._folder.is_removed

    @property
    def fits(self) -> bool:
        """Whether the limit holds any block at all."""
        return self._growth.fits

    @property
    def is_cramped(self) -> bool:
        """Whether the disk had no room when the store was to grow: its own blocks make room
        before its limit is reached."""
        return self._growth.is_cramped

    @property
    def place_bytes(self) -> int:
        """Bytes of a block of every group of layers."""
        return sum(self._group_bytes)

    @property
    def index(self) -> SlotIndex:
        return self._index

    def __len__(self) -> int:
        return len(self._index)

    def holds(self, key: Key, group: int) -> bool:
        return name_of(key, group) in self._index

    def use(self, keys: Sequence[Key], group: int) -> None:
        """Note that a chain's blocks are asked for, here or where they were copied to."""
        second = int(self._now())
        for segment, slot in self._index.use(_names(reversed(keys), group), second):
            self._notes.use(segment, slot, second)

    def keep(self, keys: Sequence[Key], seconds: float) -> None:
        """Let the blocks of a chain, of all groups, make room after all others for so long, now or
        when they are written, as long as such blocks take less than their share of the limit."""
        now = self._now()
        until = int(now + seconds)
        names = [name_of(key, g) for key in keys for g in range(len(self._group_bytes))]
        for segment, slot in self._index.keep(names, until, now):
            self._notes.keep(segment, slot, until)

    def read_bytes(self, count: int) -> int:
        """Bytes of memory into which so many blocks are read."""
        return self._reader.num_bytes(count)

    def read(
        self,
        keys: Sequence[Key],
        group: int,
        memory: Bytes | None = None,
        past_cache: bool = False,
    ) -> ReadBlocks:
        """Read the blocks of these keys from the first on.

        They are read into ``memory``, :meth:`read_bytes` long, if there is some, and are views of
        it then, unless they were encrypted. ``past_cache``: as ``Segment.read``. Their checksums
        are those that they were written with, and were not compared with the bytes.
        """
        return self._reader.read(keys, group, memory, past_cache)

    def write(self, blocks: Sequence[NewBlock]) -> int:
        """Write blocks that are not there yet, for which others may make room; returns how many
        are there now. Where there is not room for all, those at the ends of chains are left out."""
        left = sorted(self._index.absent(blocks), key=_place)
        if self._cipher is not None:
            left = list(map(self._cipher.seal, left))
        count, staying = len(blocks), {each.name for each in blocks}
        staying |= {each.parent_name for each in blocks}
        for _ in range(_ROUNDS):
            if not left:
                break
            chosen = self._choose(len(left), staying)
            if not chosen:
                break
            missed: list[NewBlock] = []
            for segment, slots in chosen:
                part, left = left[: len(slots)], left[len(slots) :]
                missed += self._put(segment, slots, part)
            left = sorted([*missed, *left], key=_place)
        return count - len(left)

    def drop(self, keys: Sequence[Key], group: int) -> list[Place]:
        """Find blocks no longer that are damaged; returns where they are, for :meth:`empty`."""
        return self._index.drop(_names(keys, group))

    def empty(self, places: Sequence[Place]) -> None:
        """Empty the slots of blocks that were dropped, for all processes, unless others were
        written there."""
        for place in places:
            segment = place.segment
            if segment not in self._index.segments:
                continue
            with segment.locked() as changed:
                self._follow(segment, changed)
                if self._index.name_at(place) is None:
                    segment.clear([place.slot])

    def clear(self) -> None:
        """Remove all blocks of this kind that are not pinned, for all processes."""
        self._folder.clear()
        for segment in self._index.segments:
            if not segment.is_pinned:
                self._give_up(segment)

    def refresh(self) -> None:
        """Look at what other processes have done and used, and let them see what was used here."""
        gone = False
        for segment in self._index.segments:
            if segment.is_removed:  # perhaps there is another one of its name
                self._give_up(segment)
                gone = True
                continue
            try:
                changed = segment.refresh()
            except OSError as error:
                self._leave_out(segment.path, error)
                self._give_up(segment)
                gone = True
            else:
                self._follow(segment, changed)
        if gone:
            self._index.find_again(int(self._now()))
        self._open_segments()
        self._exchange_uses()

    def sync(self) -> None:
        """Wait until what was written would survive a loss of power."""
        for segment in self._index.segments:
            segment.sync()

    def close(self) -> None:
        for segment in self._index.segments:
            with contextlib.suppress(OSError):
                self._notes.exchange(segment)
            self._give_up(segment)
            segment.close()
        self._folder.close()

    def check_integrity(self) -> None:
        """Raise AssertionError unless index, slots and what is retained agree."""
        self._index.check_integrity()

    def _choose(self, count: int, staying: Collection[Name]) -> list[tuple[Segment, list[int]]]:
        """Up to so many slots for new blocks, in each segment ascending; none of what is
        ``staying``."""
        chosen: dict[Segment, list[int]] = {}
        left = count - self._index.take_free(count, chosen)
        while left:
            segment = self._growth.segment(len(self._index) == self._index.num_pinned)
            if segment is None:
                break
            self._index.adopt(segment)
            left -= self._index.take_free(left, chosen)
        if left:
            for place in self._index.victims(left, self._now(), staying):
                chosen.setdefault(place.segment, []).append(place.slot)
        return [(segment, sorted(slots)) for segment, slots in chosen.items()]

    def _put(
        self, segment: Segment, slots: list[int], blocks: Sequence[NewBlock]
    ) -> list[NewBlock]:
        """Write blocks into slots that are free, or whose blocks make room; returns those for
        which they were neither any more."""
        index = self._index
        wanted = {slot: index.name_at(Place(segment, slot)) for slot in slots}
        with segment.locked() as changed:
            self._follow(segment, changed)
            if segment.is_removed:
                self._give_up(segment)
                return list(blocks)
            blocks = [each for each in blocks if each.name not in index]  # others' by now
            slots = [s for s in slots if index.name_at(Place(segment, s)) == wanted[s]]
            slots = slots[: len(blocks)]
            part, missed = blocks[: len(slots)], list(blocks[len(slots) :])
            if not slots:
                return missed
            self.stats.evicted += sum(index.leave(segment, slot) for slot in slots)
            segment.put(slots, entries_of(part), [each.data for each in part])
            self._notes.begin(segment, index.enter(segment, slots, part, int(self._now())))
            self.stats.written += len(part)
        return missed

    def _follow(self, segment: Segment, changed: NDArray[np.intp]) -> None:
        self._note_kept(self._index.follow(segment, changed, int(self._now())))

    def _note_kept(self, kept: Iterable[tuple[Place, float]]) -> None:
        for (segment, slot), until in kept:
            self._notes.keep(segment, slot, int(until))

    def _exchange_uses(self) -> None:
        self._notes.forget_others(self._index.segments)
        for segment in self._index.segments:
            try:
                others = self._notes.exchange(segment)
            except OSError as error:
                self._leave_out(segment.path, error)
                self._give_up(segment)
                continue
            self._index.follow_uses(segment, others, int(self._now()))

    def _open_segments(self) -> None:
        """Open segments that were not there before."""
        found: list[tuple[int, int, bool, Place]] = []
        for path in self._folder.segments():
            if self._index.has_segment(path.name) or path.name in self.unreadable:
                continue
            with contextlib.suppress(FileNotFoundError):
                try:
                    opened = self._opened(path)
                except OSError as error:
                    self._leave_out(path, error)
                    continue
                if opened is None:
                    continue
                segment, slots, every_use = opened
                uses = every_use[slots]
                numbers = segment.entries["place"][slots]
                found += zip(
                    uses["second"].tolist(),
                    (-numbers.astype(np.int64)).tolist(),
                    (uses["count"] > 0).tolist(),
                    (Place(segment, slot) for slot in slots.tolist()),
                    strict=True,
                )
                self._index.adopt(segment)
        # Those used in the same second: of a chain the tail first.
        found.sort(key=lambda each: each[:2])
        entered = ((second, again, place) for second, _, again, place in found)
        self._note_kept(self._index.enter_found(entered, int(self._now())))

    def _opened(self, path: Path) -> tuple[Segment, NDArray[np.intp], Uses] | None:
        """A segment, its slots that hold something, and the uses of all; None for one of other
        blocks. Raises OSError."""
        segment = Segment.open(path)
        if segment is None:
            return None
        try:
            if self._suits(segment.layout):
                return segment, segment.refresh(), self._notes.look(segment)
        except BaseException:
            segment.close()
            raise
        segment.close()
        return None

    def _leave_out(self, path: Path, error: OSError) -> None:
        """Do without a segment that the disk cannot read. Raises any other ``error``."""
        if error.errno not in _BROKEN:
            raise error
        self.unreadable.add(path.name)

    def _suits(self, layout: SegmentLayout) -> bool:
        return layout.digest == self._folder.digest and layout.slot_bytes == self._slot_bytes

    def _give_up(self, segment: Segment) -> None:
        self._index.give_up(segment)
        self._notes.forget(segment)


def _place(block: NewBlock) -> int:
    return block.place


def _names(keys: Iterable[Key], group: int) -> list[Name]:
    return [name_of(key, group) for key in keys]
