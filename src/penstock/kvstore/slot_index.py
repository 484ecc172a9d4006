"""Which block is in which slot, and what makes room."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from penstock.cache.retention import Retention
from penstock.kvstore.blocks import Name, NewBlock, name_of
from penstock.kvstore.kept_blocks import KeptBlocks
from penstock.kvstore.places import Place
from penstock.kvstore.segment import Segment
from penstock.kvstore.use_notes import OthersUses


class SlotIndex:
    """The index of a store, in memory: it touches no file. Blocks of pinned prefixes are found like
    others, and never make room; nothing is written into their segments.

    :meth:`places`, :meth:`use`, :meth:`keep`, :meth:`drop` and ``in`` may be called by any thread,
    all others by the writer.
    """

    def __init__(
        self,
        group_bytes: Sequence[int],
        retention: Retention[Name],
        windowed: Collection[int] = (),
        most_kept: int = 0,
    ) -> None:
        """``group_bytes``: bytes of a block of each group of layers; ``windowed``: the groups whose
        blocks are of use without all those before them; ``most_kept``: most blocks that are kept
        until a time. ``retention`` is empty."""
        self._kept = KeptBlocks(most_kept)
        self._group_bytes = group_bytes
        self._windowed = frozenset(windowed)
        self._retention = retention
        self._mutex = threading.Lock()
        self._segments: dict[str, Segment] = {}
        self._places: dict[Name, Place] = {}
        self._names: dict[Segment, list[Name | None]] = {}
        """What is in each slot; None where it is free, or has what is in another slot, too."""
        self._free: dict[Segment, dict[int, None]] = {}
        """Slots without a name, in the order in which they are to be used."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: Name) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[Name]:
        return iter(list(self._places))

    @property
    def num_pinned(self) -> int:
        """Blocks of pinned prefixes."""
        with self._mutex:
            return len(self._places) - len(self._retention)

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments.values())

    def has_segment(self, file_name: str) -> bool:
        return file_name in self._segments

    def adopt(self, segment: Segment) -> None:
        """Take a segment, of which all slots are free."""
        with self._mutex:
            self._segments[segment.path.name] = segment
            self._names[segment] = [None] * segment.layout.slots
            self._free[segment] = dict.fromkeys(range(segment.layout.slots))

    def give_up(self, segment: Segment) -> None:
        """Forget a segment, and what is in it."""
        with self._mutex:
            for slot in range(segment.layout.slots):
                self._leave(segment, slot)
            del self._names[segment], self._free[segment]
            del self._segments[segment.path.name]

    def name_at(self, place: Place) -> Name | None:
        """What is in a slot; None where it is free, or its segment was given up."""
        names = self._names.get(place.segment)
        return None if names is None else names[place.slot]

    def absent(self, blocks: Iterable[NewBlock]) -> list[NewBlock]:
        """Those of the blocks that are nowhere, each once."""
        with self._mutex:
            return list({b.name: b for b in blocks if b.name not in self._places}.values())

    def places(self, names: Iterable[Name]) -> list[Place]:
        """Where these blocks are, up to the first that cannot be found."""
        places = []
        with self._mutex:
            for name in names:
                place = self._places.get(name)
                if place is None:
                    break
                places.append(place)
        return places

    def use(self, names: Iterable[Name], at: float) -> list[Place]:
        """Note that blocks were asked for, as far as they can be found; returns where they are. Of
        a chain the tail comes before the head."""
        places = []
        with self._mutex:
            for name in names:
                place = self._places.get(name)
                if place is not None:
                    if not place.segment.is_pinned:
                        self._retention.use(name, at)
                    places.append(place)
        return places

    def keep(self, names: Iterable[Name], until: float, now: float) -> list[Place]:
        """Let blocks make room after all others until a time, whether they are there or come later,
        unless too many are kept already; returns where those are that are there. Of a chain the
        head comes first."""
        places = []
        with self._mutex:
            for name in names:
                if not self._kept.add(name, until, now):
                    break
                place = self._places.get(name)
                if place is not None and not place.segment.is_pinned:
                    self._retention.keep(name, until)
                    places.append(place)
        return places

    def drop(self, names: Iterable[Name]) -> list[Place]:
        """Find these blocks no longer; returns where they are."""
        places = []
        with self._mutex:
            for name in names:
                place = self._places.get(name)
                if place is not None:
                    places.append(place)
                    self._leave(*place)
        return places

    def take_free(self, count: int, chosen: dict[Segment, list[int]]) -> int:
        """Add up to so many free slots to those that are ``chosen``; returns how many. They stay
        free until they are entered."""
        taken = 0
        with self._mutex:
            for segment, free in self._free.items():
                if segment.is_pinned:
                    continue
                here = frozenset(chosen.get(segment, ()))
                unchosen = (slot for slot in free if slot not in here)
                slots = list(islice(unchosen, count - taken))
                if slots:
                    chosen.setdefault(segment, []).extend(slots)
                    taken += len(slots)
                if taken == count:
                    break
        return taken

    def victims(self, count: int, now: float, staying: Collection[Name]) -> list[Place]:
        """Where up to so many blocks are that make room first, in that order; none of those that
        are ``staying``, nor of what these need before them."""
        with self._mutex:
            return [self._places[name] for name in self._retention.victims(count, now, staying)]

    def enter(
        self, segment: Segment, slots: Iterable[int], blocks: Iterable[NewBlock], at: float
    ) -> dict[int, float]:
        """Name free slots by the blocks that were written into them at that time; returns for each
        the time that counts as its block's last use, which is to come where it is kept."""
        until: dict[int, float] = {}
        with self._mutex:
            # Of a chain the tail gives way before the head.
            for slot, block in sorted(zip(slots, blocks, strict=True), key=_by_place):
                until[slot] = max(at, self._kept.until(block.name))
                self._enter(Place(segment, slot), block.name, self._parent(block), until[slot])
        return until

    def leave(self, segment: Segment, slot: int) -> bool:
        """Free a slot; returns whether it held a block."""
        with self._mutex:
            return self._leave(segment, slot)

    def follow(
        self, segment: Segment, changed: NDArray[np.intp], at: float
    ) -> list[tuple[Place, float]]:
        """Name slots by their segment's entries where others have changed these; ``at`` counts as
        the last use of blocks that are new. Returns the places of those that this engine was asked
        to keep, and until when: nobody else knows of that."""
        kept = []
        with self._mutex:
            for slot in changed.tolist():
                self._leave(segment, slot)
            for slot in changed.tolist():
                until = self._enter_found(Place(segment, slot), at)
                if until is not None:
                    kept.append((Place(segment, slot), until))
        return kept

    def follow_uses(self, segment: Segment, others: OthersUses, now: float) -> None:
        """Let blocks be as recent as others have noted."""
        if segment.is_pinned or len(others.slots) == 0:
            return
        places = segment.entries["place"][others.slots].astype(np.int64)
        order = np.lexsort((-places, others.seconds))  # of a chain the tail first
        with self._mutex:
            names = [self._names[segment][slot] for slot in others.slots[order].tolist()]
            uses = zip(
                names,
                self._kept.heeded(names, others.seconds[order].tolist(), now),
                others.again[order].tolist(),
                strict=True,
            )
            for name, at, is_again in uses:
                if name is not None and is_again:
                    self._retention.use(name, at)
                elif name is not None:
                    self._retention.keep(name, at)

    def enter_found(
        self, found: Iterable[tuple[float, bool, Place]], now: float
    ) -> list[tuple[Place, float]]:
        """Name free slots by their entries, in the order of the seconds that were noted as those of
        their last uses, of a chain the tail first; each with whether it was used again since it was
        written. Returns what :meth:`follow` does."""
        kept, found = [], list(found)
        with self._mutex:
            names = [self._name_of(place) for _, _, place in found]
            times = self._kept.heeded(names, [second for second, _, _ in found], now)
            for (_, is_again, place), at in zip(found, times, strict=True):
                until = self._enter_found(place, at, is_again)
                if until is not None:
                    kept.append((place, until))
        return kept

    def find_again(self, at: float) -> None:
        """Name free slots that hold blocks which were found in others until these were given up."""
        with self._mutex:
            for segment, free in self._free.items():
                for slot in np.flatnonzero(segment.entries["full"]).tolist():
                    if slot in free:
                        self._enter_found(Place(segment, slot), at)

    def check_integrity(self) -> None:
        """Raise AssertionError unless names, slots and what is retained agree."""
        with self._mutex:
            named = pinned = 0
            for segment, names in self._names.items():
                free = self._free[segment]
                for slot, name in enumerate(names):
                    assert (name is None) == (slot in free), "a slot is neither free nor named"
                    if name is not None:
                        named += 1
                        assert self._places[name] == Place(segment, slot)
                        pinned += segment.is_pinned
                        assert (name in self._retention) != segment.is_pinned
            assert named == len(self._places) == len(self._retention) + pinned

    # The mutex is held.

    def _name_of(self, place: Place) -> Name | None:
        """The block of a slot's entry; None where there is none that can be found."""
        entry = place.segment.entries[place.slot]
        group = int(entry["group"])
        if not entry["full"] or group >= len(self._group_bytes):
            return None
        if int(entry["bytes"]) != self._group_bytes[group]:
            return None
        return name_of(entry["key"].tobytes(), group)

    def _enter_found(self, place: Place, at: float, is_again: bool = False) -> float | None:
        """Name a slot by its entry, if that is of a block that is in no other slot, with the time
        that is known as that of its last use; returns until when it was asked to stay here, if that
        is later."""
        name = self._name_of(place)
        if name is None:
            return None
        entry = place.segment.entries[place.slot]
        other = self._places.get(name)
        if other is not None:
            # All processes keep the same one of two, or each might write over the other's.
            if other.order <= place.order:
                return None
            self._leave(*other)
        group = int(entry["group"])
        parent = None if group in self._windowed else name_of(entry["parent"].tobytes(), group)
        until = self._kept.until(name)
        self._enter(place, name, parent, max(at, until), is_again)
        return until if until > at else None

    def _parent(self, block: NewBlock) -> Name | None:
        return None if block.group in self._windowed else block.parent_name

    def _enter(
        self, place: Place, name: Name, parent: Name | None, at: float, is_again: bool = False
    ) -> None:
        del self._free[place.segment][place.slot]
        self._names[place.segment][place.slot] = name
        self._places[name] = place
        if not place.segment.is_pinned:
            self._retention.add(name, parent, at, is_again)

    def _leave(self, segment: Segment, slot: int) -> bool:
        name = self._names[segment][slot]
        if name is None:
            return False
        self._names[segment][slot] = None
        self._free[segment][slot] = None
        del self._places[name]
        if not segment.is_pinned:
            self._retention.drop(name)
        return True


def _by_place(written: tuple[int, NewBlock]) -> int:
    return -written[1].place
