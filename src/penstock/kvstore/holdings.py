"""What is in a directory of segments, for those who are no engine and do not count as using it."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.cache.prefix import Key
from penstock.errors import StoreError
from penstock.kvstore.about import KindAbout
from penstock.kvstore.blocks import Checksum, NewBlock, is_of
from penstock.kvstore.directory import ABOUT, kind_folder, kind_folders
from penstock.kvstore.layout import Entries
from penstock.kvstore.segment import SUFFIX, UNFINISHED, Segment, is_pin


class Row(NamedTuple):
    """Where a block is, and when it was used last."""

    segment: Segment
    slot: int
    second: int

    @property
    def entry(self) -> np.void:
        entry: np.void = self.segment.entries[self.slot]
        return entry


@dataclass(frozen=True)
class _Loaded:
    """A segment as it was found."""

    segment: Segment
    slots: NDArray[np.intp]
    """Those with a block."""
    seconds: NDArray[np.uint32]
    """When each of all slots was used last."""

    @property
    def entries(self) -> Entries:
        return self.segment.entries[self.slots]


class Holdings:
    """The blocks of one kind, as they were when it was made. Methods raise OSError."""

    def __init__(self, path: Path) -> None:
        """Raises StoreError for a folder that holds none."""
        try:
            self.about = KindAbout.decoded((path / ABOUT).read_bytes())
        except FileNotFoundError:
            raise StoreError(f"{path} holds no blocks of KV caches") from None
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None
        self.digest = self.about.digest()
        if path != kind_folder(path.parent, self.digest):
            raise StoreError(f"{path} is not named by what its blocks are said to be of")
        self._loaded = list(self._load(path))

    @property
    def segments(self) -> list[Segment]:
        return [each.segment for each in self._loaded]

    @cached_property
    def rows(self) -> dict[Key, list[Row]]:
        """All blocks by their keys, those that are pinned first."""
        rows: defaultdict[Key, list[Row]] = defaultdict(list)
        for each in self._loaded:
            keys = each.entries["key"].tobytes()
            for i, slot in enumerate(each.slots.tolist()):
                row = Row(each.segment, slot, int(each.seconds[slot]))
                rows[keys[16 * i : 16 * (i + 1)]].append(row)
        return dict(rows)

    def of(self, keys: Sequence[Key]) -> dict[Key, list[Row]]:
        """As :attr:`rows`, of some keys alone; does not look at all others one by one."""
        wanted = frozenset(keys)
        starts = np.frombuffer(b"".join(wanted), "<u8")[::2]
        rows: defaultdict[Key, list[Row]] = defaultdict(list)
        for each in self._loaded:
            found = np.ascontiguousarray(each.entries["key"]).view("<u8")[::2]
            for i in np.flatnonzero(np.isin(found, starts)).tolist():
                slot = int(each.slots[i])
                key = each.segment.entries["key"][slot].tobytes()
                if key in wanted:
                    rows[key].append(Row(each.segment, slot, int(each.seconds[slot])))
        return dict(rows)

    def chain(self, tail: Key) -> list[Key]:
        """The keys of the prefix that ends with a block, each at its place; those before all that
        is needed are empty, where every group of layers has a window. Raises StoreError where a
        block that is needed is not there."""
        keys, place, first = [tail], None, 0
        while True:
            row = next(iter(self.rows.get(keys[-1], ())), None)
            if row is None or (place is not None and int(row.entry["place"]) != place - 1):
                raise StoreError(f"what comes before block {keys[-1].hex()} is not there any more")
            if place is None:
                count = int(row.entry["place"]) + 1
                groups = range(len(self.about.group_bytes))
                first = min(self.about.first_seen(group, count) for group in groups)
            place = int(row.entry["place"])
            if place <= first:
                return [b""] * place + keys[::-1]
            keys.append(row.entry["parent"].tobytes())

    def needed(self, keys: Sequence[Key]) -> list[tuple[Key, int, Row]]:
        """The blocks, with their groups, that a continuation of the chain attends to. Raises
        StoreError where not all are there."""
        rows, about, missing = self.of(keys), self.about, 0
        found: list[tuple[Key, int, Row]] = []
        for group, size in enumerate(about.group_bytes):
            for key in keys[about.first_seen(group, len(keys)) :]:
                there = (row for row in rows.get(key, ()) if is_of(row.entry, key, group, size))
                row = next(there, None)
                if row is None:
                    missing += 1
                else:
                    found.append((key, group, row))
        if missing:
            raise StoreError(
                f"{missing:,} of the prefix's {missing + len(found):,} blocks are not on disk"
            )
        return found

    def read(
        self, blocks: Iterable[tuple[Key, int, Row]], checksum: Checksum
    ) -> Iterator[NewBlock]:
        """Blocks as :meth:`needed` has them, with their bytes.

        One that is not what its checksum says is removed from disk, and StoreError raised; so it is
        where one made room meanwhile. Those that are encrypted are taken as they are: what tells of
        them is for who has the key, whenever they are read. Raises OSError.
        """
        sealed = bool(self.about.cipher)
        for key, group, row in blocks:
            block = _read_block(key, group, row)
            if not sealed and checksum(block.data) != block.checksum:
                empty([row])
                raise StoreError(
                    f"block {block.place} of the prefix is not what its checksum says: the disk, "
                    "or what wrote to it, has damaged it; it was removed. 'penstock cache add' "
                    "computes it again"
                )
            yield block

    def _load(self, path: Path) -> Iterator[_Loaded]:
        names = sorted(path.glob(f"*{SUFFIX}"), key=lambda name: (not is_pin(name.name), name.name))
        for name in names:
            if name.name.startswith(UNFINISHED) or name.is_symlink() or not name.is_file():
                continue
            with contextlib.suppress(FileNotFoundError):
                segment = Segment.open(name)
                if segment is None:
                    continue
                if segment.layout.digest != self.digest:
                    segment.close()
                    continue
                slots = segment.refresh()
                yield _Loaded(segment, slots, segment.uses()["second"])


def holdings(root: Path) -> Iterator[Holdings]:
    """Those of all kinds in a directory; folders that hold none are left out. Raises StoreError
    where it is no directory of blocks, and OSError."""
    try:
        paths = kind_folders(root)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"there is no folder {root}; name the one of --kv-disk") from None
    for path in paths:
        with contextlib.suppress(StoreError):
            yield Holdings(path)


def empty(rows: Iterable[Row]) -> None:
    """Let slots be empty that hold what they held. Raises OSError."""
    by_segment: defaultdict[Segment, list[Row]] = defaultdict(list)
    for row in rows:
        by_segment[row.segment].append(row)
    for segment, some in by_segment.items():
        before = {row.slot: row.entry.copy() for row in some}
        with segment.locked():
            segment.clear([slot for slot, was in before.items() if segment.entries[slot] == was])


def _read_block(key: Key, group: int, row: Row) -> NewBlock:
    """A block with its bytes. Raises StoreError if it made room meanwhile, and OSError."""
    size = int(row.entry["bytes"])
    data = np.empty((1, row.segment.layout.slot_bytes), np.uint8)
    (entry,) = row.segment.read(row.slot, data)
    if not is_of(entry, key, group, size):
        raise StoreError("blocks of the prefix made room while it was read; try it again")
    parent, place = entry["parent"].tobytes(), int(entry["place"])
    return NewBlock(key, parent, group, place, data[0, :size], int(entry["crc"]))
