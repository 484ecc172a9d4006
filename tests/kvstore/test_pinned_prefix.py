"""A prefix that is pinned stays, whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np
import pytest
from support.pinned import LIMIT, held, pinned
from support.stored_blocks import (
    ABOUT,
    block,
    chain,
    fill,
    key,
    of_kind,
    place_of_kind,
    same,
    total_bytes,
)
from support.tiered import flip, segments

from penstock.errors import StoreError
from penstock.kv_disk_config import BlockPlace
from penstock.kvstore.holdings import Holdings
from penstock.kvstore.pinned_prefix import pin
from penstock.kvstore.pinning import pin_computed
from penstock.kvstore.prefixes import prefixes, remove
from penstock.kvstore.segment import Segment
from penstock.kvstore.store import KvStore


def test_a_pinned_prefix_outlives_all_others(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    assert pinned(tmp_path, 0, 5, "greeting")
    assert not pinned(tmp_path, 0, 5, "again")
    store.refresh()
    store.check_integrity()
    fill_up(store)
    assert same(store, range(5))
    assert same(store, range(5), 1)
    store.check_integrity()
    store.clear()
    assert same(store, range(5))
    store.close()
    again = of_kind(tmp_path, LIMIT)
    assert same(again, range(5))
    fill_up(again, 200_000)
    assert same(again, range(5))
    again.check_integrity()
    (listed,) = (each for each in prefixes(tmp_path) if each.pinned)
    assert (listed.id, listed.label, listed.tokens) == (key(4).hex(), "greeting", 160)
    assert listed.whole
    assert total_bytes(tmp_path) <= LIMIT
    again.close()


def test_it_gives_way_to_no_other_kind(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    pinned(tmp_path, 0, 5)
    store.close()
    other = of_kind(tmp_path, LIMIT, msgspec.structs.replace(ABOUT, identity={"penstock": "2"}))
    fill_up(other)
    assert total_bytes(tmp_path) <= LIMIT
    other.close()
    again = of_kind(tmp_path, LIMIT)
    assert same(again, range(5))
    again.close()


def test_pinned_prefixes_take_at_most_their_share(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    for first in (0, 100):
        store.write(chain(first, 10))
        assert pinned(tmp_path, first, 10)
    store.refresh()
    store.write(chain(200, 10))
    half = f"{LIMIT // 2:,} that may be pinned are taken .50% of the folder's {LIMIT:,}"
    with pytest.raises(StoreError, match=half):
        pinned(tmp_path, 200, 10)
    (least, *_) = [each for each in prefixes(tmp_path) if each.pinned]
    remove(tmp_path, least)
    assert pinned(tmp_path, 200, 10)
    store.close()


def test_one_that_is_not_whole_is_not_pinned(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write([each for each in chain(0, 5) if (each.place, each.group) != (3, 1)])
    with pytest.raises(StoreError, match="1 of the prefix's 10 blocks are not on disk"):
        pinned(tmp_path, 0, 5)
    assert not any(each.pinned for each in prefixes(tmp_path))
    store.close()


def test_a_pinned_prefix_is_read_from_its_own_file(tmp_path: Path) -> None:
    """Which nothing writes over, unlike what else there is of its blocks."""
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    store.close()
    assert pinned(tmp_path, 0, 5)
    keys = [key(n) for n in range(5)]
    its = held(tmp_path)
    assert all(len(its.rows[each]) == 4 for each in keys)
    assert all(row.segment.is_pinned for _, _, row in its.needed(keys))


def test_a_pinned_prefix_survives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are on disk before it has its name, and so is its name before that is told."""
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    store.close()
    done: list[str] = []
    sync, rename_file = os.fsync, Path.rename

    def synced(fd: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        sync(fd)

    def renamed(self: Path, target: Path) -> Path:
        done.append("rename")
        return rename_file(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    assert pinned(tmp_path, 0, 5)
    name, folder = f"pin-{key(4).hex()}.kvseg", f"kv-{ABOUT.digest().hex()}"
    assert done == [f"sync .new-{name}", "rename", f"sync {folder}"]


def test_who_ends_while_pinning_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    rename = Path.rename

    class Killed(BaseException):
        pass

    def killed(self: Path, target: Path) -> Path:
        raise Killed

    monkeypatch.setattr(Path, "rename", killed)
    monkeypatch.setattr(Path, "unlink", lambda *args, **kwargs: None)  # nor does it clean up
    with pytest.raises(Killed):
        pinned(tmp_path, 0, 5)
    monkeypatch.undo()
    assert rename is Path.rename
    assert list(tmp_path.rglob(".new-*"))
    store.refresh()
    store.check_integrity()
    assert not any(each.pinned for each in prefixes(tmp_path))
    assert pinned(tmp_path, 0, 5)
    assert not list(tmp_path.rglob(".new-*"))
    store.close()


def test_a_full_disk_pins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))

    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        pinned(tmp_path, 0, 5)
    monkeypatch.undo()
    assert not list(tmp_path.rglob(".new-*"))
    monkeypatch.setattr(Segment, "put", full)
    with pytest.raises(OSError, match="No space left"):
        pinned(tmp_path, 0, 5)
    assert not list(tmp_path.rglob(".new-*"))
    assert not list(tmp_path.rglob("pin-*"))
    store.close()


def test_windows_need_only_what_is_seen(tmp_path: Path) -> None:
    """The last blocks alone are pinned of layers with a window, and count."""
    about = msgspec.structs.replace(ABOUT, windows=(0, 40))
    store = of_kind(tmp_path, LIMIT, about)
    store.write([each for each in chain(0, 8) if each.group == 0 or each.place >= 6])
    folder = place_of_kind(tmp_path, LIMIT, about)
    path = tmp_path / f"kv-{about.digest().hex()}"
    assert pin(folder, Holdings(path), [key(n) for n in range(8)], "w", crc32)
    folder.close()
    store.refresh()
    fill_up(store)
    assert same(store, range(8))
    assert same(store, [6, 7], 1)
    (listed,) = (each for each in prefixes(tmp_path) if each.pinned)
    assert listed.whole
    store.check_integrity()
    store.close()


def test_fillers_are_what_makes_room(tmp_path: Path) -> None:
    """What the other tests count on: without a pin, a prefix that is not asked for goes."""
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    fill(store, 10)
    fill_up(store)
    assert not store.holds(key(0), 0)
    store.close()


def test_one_that_lost_a_block_is_pinned_anew(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    assert pinned(tmp_path, 0, 5, "greeting")
    store.close()
    again = of_kind(tmp_path, LIMIT)
    again.empty(again.drop([key(3)], 1))
    again.close()
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))  # as an engine does that finds it no more
    assert pinned(tmp_path, 0, 5, "greeting")
    assert not pinned(tmp_path, 0, 5, "greeting")
    for _ in range(2):  # what was there is forgotten first
        store.refresh()
    store.clear()
    assert same(store, range(5))
    assert same(store, range(5), 1)
    store.check_integrity()
    store.close()


@pytest.mark.parametrize("name", ["pin-copy", "pin-", f"pin-{key(4).hex()} (1)", "a copy"])
def test_a_copy_of_a_file_is_no_pinned_prefix(name: str, tmp_path: Path) -> None:
    store = of_kind(tmp_path)
    store.write(chain(0, 5))
    (file,) = segments(tmp_path)
    shutil.copy(file, file.with_name(f"{name}.kvseg"))
    (only,) = prefixes(tmp_path)
    assert (only.id, only.pinned) == (key(4).hex(), False)
    store.refresh()
    assert store.index.num_pinned == 0
    store.check_integrity()
    store.close()


def test_what_does_not_come_to_disk_is_not_pinned(tmp_path: Path) -> None:
    of_kind(tmp_path, LIMIT).close()
    place = BlockPlace(folder=str(tmp_path), limit=LIMIT, kind=ABOUT.digest().hex())
    with pytest.raises(
        StoreError, match="10 of the prefix's 10 blocks are not on disk: the engine"
    ):
        pin_computed(place, [key(n) for n in range(5)], "", crc32, patience_s=0.3)


def test_a_damaged_block_is_not_pinned(tmp_path: Path) -> None:
    """And what was pinned before stays as it was."""
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    (unpinned,) = store.index.segments
    flip(unpinned.path, unpinned.layout.slot_at(slot_of(unpinned, 2)) + 5)
    with pytest.raises(StoreError, match="block 2 of the prefix is not what its checksum says"):
        pinned(tmp_path, 0, 5)
    assert not list(tmp_path.rglob("pin-*"))
    store.refresh()
    assert not store.holds(key(2), 0)
    store.write(chain(0, 5))
    assert pinned(tmp_path, 0, 5)
    # One of its blocks is dropped there, and what else there is of that block is damaged.
    (path,) = tmp_path.rglob("pin-*")
    pin_segment = Segment.open(path)
    assert pin_segment is not None
    pin_segment.refresh()
    with pin_segment.locked():
        pin_segment.clear([slot_of(pin_segment, 2)])
    flip(unpinned.path, unpinned.layout.slot_at(slot_of(unpinned, 2)) + 5)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="block 2 of the prefix is not what its checksum says"):
        pinned(tmp_path, 0, 5)
    assert path.read_bytes() == before
    store.refresh()
    store.write(chain(0, 5))
    assert pinned(tmp_path, 0, 5)
    store.refresh()
    assert same(store, range(5))
    for each in (store, pin_segment):
        each.close()


def slot_of(segment: Segment, place: int) -> int:
    """Where the block of the first group is that has this place in its chain."""
    entries = segment.entries
    there = (entries["place"] == place) & (entries["group"] == 0) & (entries["full"] == 1)
    return int(np.flatnonzero(there)[0])


def fill_up(store: KvStore, first: int = 100_000) -> None:
    """Write until others have made room several times over."""
    for number in range(first, first + 3000, 10):
        store.write([block(n) for n in range(number, number + 10)])
    assert store.stats.evicted > 100
