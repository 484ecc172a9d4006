"""Files are read by way of the system's cache and past it, and come out the same."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from penstock.kvstore.cached_pages import CachedPages
from penstock.kvstore.disk_speed import LEAST_BANDWIDTH, DiskSpeed
from penstock.kvstore.file_reader import FileReader
from penstock.kvstore.layout import PAGE
from penstock.kvstore.read_memory import ReadMemory, joined

PAGES = 64


@pytest.fixture
def content() -> bytes:
    return np.random.default_rng(1).integers(0, 256, PAGES * PAGE, np.uint8).tobytes()


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("past_cache", [False, True])
@pytest.mark.parametrize("cached", [0, 5, PAGES])
def test_what_is_read_is_what_is_there(
    path: Path, content: bytes, past_cache: bool, cached: int
) -> None:
    memory = ReadMemory()
    fd = os.open(path, os.O_RDONLY)
    forget(fd)
    os.pread(fd, cached * PAGE, 0)  # and what the system reads ahead
    reader = FileReader(path, fd)
    for first, count in ((0, PAGES), (3, 9), (60, 4), (0, 1)):
        piece = memory.take(count * PAGE)[: count * PAGE]
        assert reader.read(piece, first * PAGE, past_cache)
        assert piece.tobytes() == content[first * PAGE : (first + count) * PAGE]
    # Beyond its end there is nothing, and none is made up.
    assert not reader.read(memory.take(2 * PAGE)[: 2 * PAGE], (PAGES - 1) * PAGE, past_cache)
    reader.close()
    os.close(fd)


def test_what_was_written_last_is_read(path: Path) -> None:
    """Though the disk has not got it yet."""
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    reader, memory = FileReader(path, fd), ReadMemory().take(4 * PAGE)[: 4 * PAGE]
    for value in (1, 2, 3):
        forget(fd)
        os.pwrite(fd, bytes([value]) * PAGE, 2 * PAGE)
        assert reader.read(memory, 0, past_cache=True)
        assert (memory[2 * PAGE : 3 * PAGE] == value).all()
    reader.close()
    os.close(fd)


def test_a_name_that_is_another_files_by_now_is_not_read(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_RDONLY)
    path.rename(path.with_name("old"))
    path.write_bytes(bytes(PAGES * PAGE))
    forget(fd)
    memory = ReadMemory().take(PAGE)[:PAGE]
    reader = FileReader(path, fd)
    assert reader.read(memory, PAGE, past_cache=True)
    assert memory.tobytes() == content[PAGE : 2 * PAGE]
    reader.close()
    os.close(fd)


def test_a_file_system_that_reads_by_its_cache_alone_is_read_so(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.open(path, os.O_RDONLY)
    forget(fd)
    opened = os.open

    def refusing(name: str, flags: int, *args: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(name, flags, *args)

    monkeypatch.setattr(os, "open", refusing)
    reader, memory = FileReader(path, fd), ReadMemory().take(8 * PAGE)[: 8 * PAGE]
    assert reader.read(memory, 0, past_cache=True)
    assert memory.tobytes() == content[: 8 * PAGE]
    reader.close()
    os.close(fd)


def test_pages_are_known_by_whether_they_are_in_memory(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    pages = CachedPages(fd)
    os.pwrite(fd, bytes(PAGES * PAGE), 0)
    assert pages.bytes_at(0, PAGES * PAGE) == PAGES * PAGE
    assert pages.bytes_at(3 * PAGE, 2 * PAGE) == 2 * PAGE
    assert pages.bytes_at(PAGE, 0) == 0
    os.ftruncate(fd, PAGE)
    pages.close()
    assert pages.bytes_at(0, PAGE) == 0
    os.close(fd)


def test_memory_is_used_again() -> None:
    memory = ReadMemory(kept_bytes=16 << 20)
    first = memory.take(100)
    assert first.ctypes.data % PAGE == 0
    address = first.ctypes.data
    memory.give(first)
    assert memory.take(8 << 20).ctypes.data != address  # which is too small
    assert memory.take(1000).ctypes.data == address
    many = [memory.take(8 << 20) for _ in range(4)]
    for each in many:
        memory.give(each)
    assert memory.free_bytes == 16 << 20


def test_rows_are_joined() -> None:
    rows = np.arange(60, dtype=np.uint8).reshape(6, 10)
    for size in (10, 7, 1):
        expected = rows[:, :size].tobytes()
        assert joined(rows.copy(), size).tobytes() == expected
    assert len(joined(np.empty((0, 10), np.uint8), 7)) == 0


def test_a_disk_is_slow_or_not_by_what_it_did_lately() -> None:
    speed = DiskSpeed()
    assert not speed.is_slow  # nothing is known
    size, at = 8 << 20, 0.0
    for bandwidth, slow in ((LEAST_BANDWIDTH * 4, False), (LEAST_BANDWIDTH / 4, True)) * 2:
        for _ in range(64):
            assert speed.add(size, at, at + size / bandwidth) == pytest.approx(size / bandwidth)
            at += size / bandwidth
        assert speed.is_slow is slow
    # Of reads at the same time each second counts once.
    took = [speed.add(size, at, at + seconds) for seconds in (1.0, 1.5, 3.0)]
    assert took == pytest.approx([1.0, 0.5, 1.5])


def forget(fd: int) -> None:
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
