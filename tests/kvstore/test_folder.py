"""Engines share a directory and its limit, whatever becomes of the files in it."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest
from support.stored_blocks import DIGEST, block, fill, key, opened, same, total_bytes
from support.tiered import flip

from penstock.errors import StoreError
from penstock.kvstore import directory
from penstock.kvstore.directory import directory_lock, kind_folder, remove_empty
from penstock.kvstore.folder import StoreFolder
from penstock.kvstore.layout import SegmentLayout


def test_the_limit_holds_for_all_kinds_together(tmp_path: Path) -> None:
    limit = 40 * 8192
    one = opened(tmp_path, limit)
    fill(one, 200)
    assert total_bytes(tmp_path) <= limit
    assert 0 < len(one) < 40
    assert same(one, range(199, 190, -1))
    one.check_integrity()
    # Another kind in use has an equal share.
    other = opened(tmp_path, limit, digest=bytes(16))
    fill(other, 100)
    assert total_bytes(tmp_path) <= limit
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
    assert total_bytes(tmp_path) <= limit // 2
    third.close()


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
