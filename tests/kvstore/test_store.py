"""Blocks on disk are found again, are what they were, and make room for others."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.stored_blocks import DIGEST, SIZES, block, fill, key, opened, same
from support.tiered import flip

from penstock.cache.retention import Lru
from penstock.errors import StoreError
from penstock.kvstore import directory
from penstock.kvstore.directory import directory_lock, kind_folder, remove_empty
from penstock.kvstore.folder import StoreFolder
from penstock.kvstore.growth import FULL_S
from penstock.kvstore.layout import SegmentLayout
from penstock.kvstore.store import KvStore


def test_blocks_are_found_by_their_keys_and_groups(tmp_path: Path) -> None:
    store = opened(tmp_path / "kv")
    assert store.write([block(n) for n in range(10)]) == 10
    assert store.write([block(n, 1) for n in range(3)]) == 3
    assert same(store, range(10))
    assert same(store, [7, 3, 5])
    assert same(store, range(3), 1)
    assert store.holds(key(9), 0)
    assert not store.holds(key(77), 0)
    assert not store.holds(key(5), 1)
    store.check_integrity()
    store.close()


def test_a_store_that_is_opened_again_has_what_it_had(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write([block(n) for n in range(30)])
    store.close()
    again = opened(tmp_path)
    assert len(again) == 30
    assert same(again, range(30))
    again.check_integrity()
    again.close()


def test_blocks_of_another_kind_are_not_found(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path, digest=bytes(16))
    one.write([block(1)])
    other.refresh()
    assert not other.holds(key(1), 0)
    # Nor are those of blocks of another size, if a digest should ever stand for both.
    third = opened(tmp_path, sizes=(50_000,))
    assert len(third) == 0
    for store in (one, other, third):
        store.close()


def test_two_processes_find_each_others_blocks(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    one.write([block(1), block(2)])
    other.refresh()
    assert same(other, [1, 2])
    other.write([block(3)])
    one.refresh()
    assert same(one, [1, 2, 3])
    one.empty(one.drop([key(2)], 0))
    assert not same(other, [2])  # noticed as it is read
    other.refresh()
    assert not other.holds(key(2), 0)
    for store in (one, other):
        store.check_integrity()
        store.close()


def test_the_limit_holds_for_all_kinds_together(tmp_path: Path) -> None:
    limit = 40 * 8192
    one = opened(tmp_path, limit)
    fill(one, 200)
    assert total(tmp_path) <= limit
    assert 0 < len(one) < 40
    assert same(one, range(199, 190, -1))
    one.check_integrity()
    # Another kind in use has an equal share.
    other = opened(tmp_path, limit, digest=bytes(16))
    fill(other, 100)
    assert total(tmp_path) <= limit
    assert len(other) >= 10
    one.refresh()
    one.check_integrity()
    assert len(one) >= 10
    one.close()
    # One that nobody uses makes room first.
    fill(other, 200)
    assert len(other) > 25
    other.close()
    third = opened(tmp_path, limit // 2)
    assert total(tmp_path) <= limit // 2
    third.close()


def test_least_recently_used_blocks_make_room(tmp_path: Path) -> None:
    store = opened(tmp_path, 40 * 8192)
    fill(store, 200)
    held = [n for n in range(200) if store.holds(key(n), 0)]
    store.use([key(n) for n in held[:5]], 0)
    store.write([block(n) for n in range(200, 200 + len(held) - 5)])
    assert same(store, held[:5])
    assert not any(store.holds(key(n), 0) for n in held[5:])
    store.close()


def test_uses_are_known_after_a_restart(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path, DIGEST, b"{}", 40 * 8192)
    store = KvStore(folder, SIZES, 40 * 8192, Lru(), now=lambda: 1000.0)
    fill(store, 200)
    held = [n for n in range(200) if store.holds(key(n), 0)]
    store.use([key(n) for n in held[:5]], 0)
    store.close()
    store = opened(tmp_path, 40 * 8192)
    store.write([block(n) for n in range(200, 200 + len(held) - 5)])
    assert same(store, held[:5])
    store.close()


def test_what_was_used_once_makes_room_first_after_a_restart_as_well(tmp_path: Path) -> None:
    """Though it was used later than what was used again; each block is a chain."""
    limit, now = 40 * 8192, 1000.0
    folder = StoreFolder(tmp_path, DIGEST, b"{}", limit)
    store = KvStore(folder, SIZES, limit, Lru(), now=lambda: now)
    store.write([block(0)])
    store.use([key(0)], 0)
    now = 1040.0
    store.write([block(n) for n in range(10, 100, 10)])
    store.close()
    now = 1100.0
    store = KvStore(StoreFolder(tmp_path, DIGEST, b"{}", limit), SIZES, limit, Lru(), lambda: now)
    first = 1000
    while store.stats.evicted < 9:
        store.write([block(first)])
        first += 10
    assert [n for n in range(0, 100, 10) if store.holds(key(n), 0)] == [0]
    store.close()


def test_of_a_chain_the_tail_makes_room_first(tmp_path: Path) -> None:
    store = opened(tmp_path, 40 * 8192)
    store.write([block(n) for n in range(10)])
    fill_up = 100
    while not store.stats.evicted:
        store.write([block(fill_up)])
        fill_up += 1
    assert [n for n in range(10) if not store.holds(key(n), 0)] == [9]
    store.close()


def test_of_a_chain_that_came_in_parts_the_tail_makes_room_first(tmp_path: Path) -> None:
    """Though its head was written before, and something else between them; after a restart, too."""
    time = itertools.count(1000.0)
    store = opened(tmp_path, 40 * 8192, now=time.__next__)
    store.write([block(n) for n in range(5)])
    store.write([block(20)])
    store.write([block(n) for n in range(5, 10)])
    number = 100
    for _ in range(2):
        evicted = store.stats.evicted
        while store.stats.evicted < evicted + 3:
            store.write([block(number)])
            number += 10  # a chain of one
        left = [n for n in (*range(10), 20) if store.holds(key(n), 0)]
        assert 20 not in left  # which is older than the tail
        assert left == list(range(len(left)))
        store.close()
        store = opened(tmp_path, 40 * 8192, now=time.__next__)
    assert 0 < len(left) < 8
    store.close()


def test_a_chain_that_is_longer_than_the_store_keeps_its_head(tmp_path: Path) -> None:
    store = opened(tmp_path, 40 * 8192)
    chain = [block(n)._replace(parent=key(n - 1)) for n in range(100)]
    there = store.write(chain)
    assert 20 < there < 40
    assert same(store, range(there))
    # Nor does more of it, in a batch of its own, take the place of what is before it.
    assert store.write(chain[there : there + 5]) == 0
    assert same(store, range(there))
    assert store.stats.evicted == 0
    # What is of another chain does.
    assert store.write([block(500), block(501)]) == 2
    assert same(store, range(there - 2))
    store.check_integrity()
    store.close()


def test_blocks_behind_windows_stand_for_themselves(tmp_path: Path) -> None:
    """Those that were not asked for make room before those behind them in their chain."""
    now = 1000.0
    folder = StoreFolder(tmp_path, DIGEST, b"{}", 40 * 8192)
    store = KvStore(folder, SIZES, 40 * 8192, Lru(), now=lambda: now, windowed=[1])
    store.write([block(n, group) for group in range(2) for n in range(10)])
    now = 2000.0
    for group in range(2):
        store.use([key(8), key(9)], group)
    number = 100
    while store.stats.evicted < 8:
        store.write([block(number)])
        number += 10
    assert [n for n in range(10) if store.holds(key(n), 1)] == [8, 9]
    assert same(store, range(10))
    store.close()


def test_a_slot_s_uses_are_those_of_its_block(tmp_path: Path) -> None:
    now = 1000.0
    store = opened(tmp_path, 40 * 8192, now=lambda: now)
    store.write([block(n) for n in range(3)])
    for _ in range(4):
        store.use([key(n) for n in range(3)], 0)
    store.refresh()
    (segment, slot), *_ = store.index.places([block(2).name])
    assert tuple(segment.uses()[slot]) == (1000, 4)
    now = 2000.0
    number = 100
    while store.holds(key(2), 0):
        store.write([block(number)])
        number += 10
    store.refresh()
    assert tuple(segment.uses()[slot]) == (2000, 0)
    store.close()


def test_new_blocks_are_new_after_a_restart(tmp_path: Path) -> None:
    """Also those in slots of blocks that were used long ago, and those never used."""
    now = 1000.0
    store = opened(tmp_path, 40 * 8192, now=lambda: now)
    fill(store, 100)
    now = 2000.0
    store.write([block(500)])
    store.close()
    again = opened(tmp_path, 40 * 8192, now=lambda: now)
    again.write([block(600)])
    assert again.holds(key(500), 0)
    again.close()


def test_a_limit_of_less_than_a_block_keeps_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path, 4096)
    assert not store.fits
    assert store.write([block(1)]) == 0
    store.close()


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "kv"
    store = opened(root)
    store.write([block(1)])
    modes = {stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (root, *root.iterdir()) if p.is_dir()} == {
        0o700
    }
    store.close()
    os.chmod(root, 0o777)
    with pytest.raises(StoreError, match="others can write into"):
        opened(root)


@pytest.mark.parametrize("at", ["key", "sum", "place"])
def test_a_spoilt_entry_counts_as_empty(tmp_path: Path, at: str) -> None:
    store = opened(tmp_path)
    store.write([block(n) for n in range(3)])
    store.close()
    (path,) = tmp_path.rglob("*.kvseg")
    offset = 4096 + 64 + {"key": 3, "place": 40, "sum": 61}[at]
    flip(path, offset)
    store = opened(tmp_path)
    assert [store.holds(key(n), 0) for n in range(3)] == [True, False, True]
    assert store.write([block(1)]) == 1
    assert same(store, range(3))
    store.check_integrity()
    store.close()


@pytest.mark.parametrize("cut", [0, 10, 4096, 9000])
def test_a_cut_segment_is_not_opened(tmp_path: Path, cut: int) -> None:
    store = opened(tmp_path)
    store.write([block(1)])
    store.close()
    (path,) = tmp_path.rglob("*.kvseg")
    os.truncate(path, cut)
    store = opened(tmp_path)
    assert not len(store)
    assert store.write([block(1)]) == 1
    assert same(store, [1])
    store.close()


def test_a_cut_segment_makes_room_first(tmp_path: Path) -> None:
    """Or its bytes would be lost to the blocks of its kind for good."""
    limit = 64 * 8192
    store = opened(tmp_path, limit)
    fill(store, 200)
    most = len(store)
    cut = store.index.segments[1]
    store.close()
    os.truncate(cut.path, cut.layout.total_bytes - 1)
    store = opened(tmp_path, limit)
    assert len(store) < most
    fill(store, 400)
    assert not cut.path.exists()
    assert len(store) == most
    store.check_integrity()
    store.close()


def test_a_clock_that_is_not_set_stops_nothing(tmp_path: Path) -> None:
    """Uses have four bytes for a time."""
    now = 2.0**33
    store = opened(tmp_path, now=lambda: now)
    store.write([block(n) for n in range(3)])
    store.use([key(0)], 0)
    store.keep([key(1)], 1000)
    store.refresh()
    now = -10.0
    store.write([block(n) for n in range(3, 6)])
    store.refresh()
    assert same(store, range(6))
    store.close()


def test_a_folder_that_cannot_be_opened_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it count as one that an engine uses."""
    opened(tmp_path).close()
    before = os.listdir("/proc/self/fd")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(directory, "_write_new", full)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            opened(tmp_path, limit=1 << 21)
        assert os.listdir("/proc/self/fd") == before
    monkeypatch.undo()
    remove_empty(tmp_path, DIGEST)
    assert not kind_folder(tmp_path, DIGEST).exists()


def test_a_folder_is_made_while_nobody_removes_it(tmp_path: Path) -> None:
    """Or an engine might begin with one that is gone."""
    with directory_lock(tmp_path):
        beginning = threading.Thread(target=lambda: opened(tmp_path).close())
        beginning.start()
        beginning.join(0.2)
        assert beginning.is_alive()
        assert not kind_folder(tmp_path, DIGEST).exists()
    beginning.join()
    assert kind_folder(tmp_path, DIGEST).exists()


def test_a_folder_may_be_given_back_twice(tmp_path: Path) -> None:
    """As where a store could not be opened: whoever made the folder gives it back, too, and another
    file has its number by then."""
    folder = StoreFolder(tmp_path, DIGEST, b"{}", 1 << 20)
    folder.close()
    with open(tmp_path / "other", "wb") as one, open(tmp_path / "another", "wb") as other:
        folder.close()
        for each in (one, other):
            each.write(b"x")
            each.flush()


def test_a_segment_that_is_cut_or_removed_in_use_is_given_up(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write([block(n) for n in range(20)])
    first = next(iter(tmp_path.rglob("*.kvseg")))
    os.truncate(first, 9000)
    assert not same(store, range(20))
    store.refresh()
    for path in list(tmp_path.rglob("*.kvseg")):
        path.unlink()
    store.refresh()
    assert not len(store)
    assert store.write([block(1)]) == 1
    assert same(store, [1])
    store.check_integrity()
    store.close()


def test_a_directory_that_is_removed_in_use_is_noticed(tmp_path: Path) -> None:
    store = opened(tmp_path / "kv")
    store.write([block(1)])
    for path in sorted((tmp_path / "kv").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "kv").rmdir()
    assert store.is_removed
    with pytest.raises(FileNotFoundError):
        store.write([block(n) for n in range(500)])
    store.refresh()
    assert not len(store)
    store.close()


def test_what_is_no_segment_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / f"kv-{DIGEST.hex()}"
    folder.mkdir(mode=0o700)
    (folder / "a.kvseg").write_bytes(b"something else")
    os.mkfifo(folder / "b.kvseg")
    (folder / "c.kvseg").symlink_to("/etc/passwd")
    (folder / "d.kvseg").write_bytes(SegmentLayout(DIGEST, 5, 8192).head())
    store = opened(tmp_path)
    assert not len(store)
    assert store.write([block(1)]) == 1
    store.close()


def total(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.kvseg"))


def test_a_disk_with_less_room_than_the_limit_keeps_what_was_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    room = small_disk(tmp_path, monkeypatch, 60 * 8192)
    store = opened(tmp_path, 1 << 50, now=lambda: now)
    fill(store, 200)
    assert total(tmp_path) <= room
    assert 40 < len(store) < 60
    assert same(store, range(199, 160, -1))
    assert store.is_cramped
    store.check_integrity()
    # Another kind in use comes to have a part of what there is, and neither takes all.
    other = opened(tmp_path, 1 << 50, digest=bytes(16), now=lambda: now)
    fill(other, 100)
    store.refresh()
    assert len(other) >= 16
    assert len(store) >= 16
    assert total(tmp_path) <= room
    store.close()
    # One that nobody uses makes room first.
    now += FULL_S
    fill(other, 1000)
    assert len(other) > 40
    other.check_integrity()
    other.close()


def test_a_store_grows_again_when_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    small_disk(tmp_path, monkeypatch, 40 * 8192)
    store = opened(tmp_path, 1 << 30, now=lambda: now)
    fill(store, 200)
    assert len(store) < 40
    monkeypatch.undo()
    fill(store, 400)
    assert len(store) < 40  # it has not looked yet
    now += FULL_S
    fill(store, 600)
    assert len(store) > 200
    store.check_integrity()
    store.close()


def test_a_disk_without_any_room_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_disk(tmp_path, monkeypatch, 100)
    store = opened(tmp_path)
    with pytest.raises(OSError, match="No space"):
        store.write([block(1)])
    store.check_integrity()
    store.close()


def small_disk(root: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> int:
    """Let the disk be so large; returns that."""

    def room() -> int:
        return max(size - total(root), 0)

    def allocate(fd: int, at: int, length: int) -> None:
        if length > room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, at + length)

    def free(path: object) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=room(), f_frsize=1)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    monkeypatch.setattr(os, "statvfs", free)
    return size
