"""A disk with less room than the limit keeps what fits."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.stored_blocks import block, fill, opened, same, total_bytes

from penstock.kvstore.growth import FULL_S


def test_a_disk_with_less_room_than_the_limit_keeps_what_was_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    room = small_disk(tmp_path, monkeypatch, 60 * 8192)
    store = opened(tmp_path, 1 << 50, now=lambda: now)
    fill(store, 200)
    assert total_bytes(tmp_path) <= room
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
    assert total_bytes(tmp_path) <= room
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
        return max(size - total_bytes(root), 0)

    def allocate(fd: int, at: int, length: int) -> None:
        if length > room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, at + length)

    def free(path: object) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=room(), f_frsize=1)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    monkeypatch.setattr(os, "statvfs", free)
    return size
