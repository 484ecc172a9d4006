"""One file of slots."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.kvstore.file_reader import FileReader
from penstock.kvstore.layout import (
    ABOUT_AT,
    ABOUT_BYTES,
    CHANGE,
    CHANGE_AT,
    ENTRIES_AT,
    ENTRY,
    PAGE,
    USE,
    USED,
    USED_AT,
    Entries,
    SegmentLayout,
    Uses,
    same,
    sums,
    whole,
)
from penstock.regular_file import open_regular

SUFFIX: Final = ".kvseg"
PIN: Final = "pin-"
"""The names of files of pinned prefixes begin so; the key of the last block follows."""
_PINNED: Final = re.compile(rf"{PIN}[0-9a-f]{{32}}{re.escape(SUFFIX)}")
UNFINISHED: Final = ".new-"
"""The name of a file begins so until it is complete."""
_MODE = 0o600
_ROWS = 512  # at once; the system takes 1,024 pieces
_UNKNOWN = -2  # of changes: nothing was looked at yet


class Segment:
    """A file of slots that several processes share.

    Whoever writes blocks holds the file's lock (:meth:`locked`) and has looked before at what
    others have changed (:meth:`refresh`). Whoever reads needs no lock: see :meth:`read`.
    ``entries`` are as they were at the last look. Methods raise OSError.
    """

    def __init__(self, path: Path, fd: int, layout: SegmentLayout) -> None:
        """Takes the descriptor."""
        self.path = path
        self.layout = layout
        self.entries: Entries = np.zeros(layout.slots, ENTRY)
        self._fd = fd
        self._reader = FileReader(path, fd)
        self._change = _UNKNOWN
        # Readers may be at work when the file is given up: the last of them closes it, so that its
        # number is never another file's.
        self.close = weakref.finalize(self, _close, self._reader, fd)

    @classmethod
    def create(
        cls,
        path: Path,
        layout: SegmentLayout,
        about: bytes = b"",
        fill: Callable[[Segment], None] | None = None,
    ) -> Segment:
        """Make the file, with all of its room on the disk: a full one is noticed here. Raises
        OSError, or what ``fill`` does, and there is no file then.

        ``fill`` writes into it what is to be there from its first moment on.
        """
        new = path.with_name(f"{UNFINISHED}{path.name}")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        segment = cls(path, fd, layout)
        try:
            os.posix_fallocate(fd, 0, layout.total_bytes)
            _write(fd, [memoryview(layout.head(about))], 0)
            if fill is not None:
                fill(segment)
                os.fsync(fd)
            new.rename(path)
        except BaseException:
            segment.close()
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        return segment

    @classmethod
    def open(cls, path: Path) -> Segment | None:
        """Open a file; None if it is no segment of this version, or cut. Raises OSError."""
        os.close(open_regular(path))  # refuses what is none, without waiting
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            layout = _layout_of(fd)
            if layout is not None:
                return cls(path, fd, layout)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    @property
    def is_pinned(self) -> bool:
        """Whether it is a pinned prefix, of which nothing makes room."""
        return is_pin(self.path.name)

    def about(self) -> bytes:
        """The description of a pinned prefix (``PinAbout``), in JSON."""
        return self._read(ABOUT_AT, ABOUT_BYTES).rstrip(b"\0")

    def set_about(self, about: bytes) -> None:
        """Replace the description of a pinned prefix: at most :data:`ABOUT_BYTES`, in one write."""
        _write(self._fd, [memoryview(about.ljust(ABOUT_BYTES, b"\0"))], ABOUT_AT)
        self.sync()

    @property
    def is_removed(self) -> bool:
        """Whether the file was deleted, or cut."""
        status = os.fstat(self._fd)
        return status.st_nlink == 0 or status.st_size != self.layout.total_bytes

    @contextlib.contextmanager
    def locked(self) -> Iterator[NDArray[np.intp]]:
        """Keep others from writing blocks; yields the slots that :meth:`refresh` returns. The lock
        ends with the process, however that ends."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            changed = self.refresh()
            if self._change % 2:  # the last writer died while it wrote
                self._set_change(self._change + 1)
            yield changed
            if self._change % 2:
                self._set_change(self._change + 1)
        except OSError:
            self._change = _UNKNOWN  # what was written is not known
            raise
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def refresh(self) -> NDArray[np.intp]:
        """Look at what has changed; returns the slots whose entries are others than before."""
        (change,) = CHANGE.unpack(self._read(CHANGE_AT, CHANGE.size))
        if change == self._change and change % 2 == 0:
            return np.empty(0, np.intp)
        # The number is read before the entries: what changes meanwhile is seen the next time. It is
        # odd while somebody writes, or where somebody has died of it.
        found = np.frombuffer(
            self._read(ENTRIES_AT, self.layout.slots * ENTRY.itemsize), ENTRY
        ).copy()
        found[~whole(found)] = np.zeros((), ENTRY)
        slots = np.flatnonzero(~same(found, self.entries))
        self.entries, self._change = found, change
        return slots

    def put(
        self, slots: Sequence[int], entries: Entries, rows: Sequence[NDArray[np.uint8]]
    ) -> None:
        """Write blocks into slots, whatever is there. The lock is held.

        Fills in what of the entries is the segment's own to say. A process that ends meanwhile
        leaves slots that count as empty.
        """
        self.clear(slots)
        size, views = self.layout.slot_bytes, [row.data for row in rows]
        for first, end in _runs(slots):
            # What follows a row in its slot is what was there before.
            if all(len(row) == size for row in rows[first:end]):
                _write(self._fd, views[first:end], self.layout.slot_at(slots[first]))
            else:
                for i in range(first, end):
                    _write(self._fd, [views[i]], self.layout.slot_at(slots[i]))
        self._begin()
        entries["full"] = 1
        entries["change"] = self._change
        entries["sum"] = sums(entries)
        self._write_entries(slots, entries)

    def clear(self, slots: Sequence[int]) -> None:
        """Empty slots. The lock is held."""
        used = [slot for slot in slots if self.entries["full"][slot]]
        if used:
            self._write_entries(used, np.zeros(len(used), ENTRY))

    def read(self, first: int, slots: NDArray[np.uint8], past_cache: bool = False) -> Entries:
        """Read the slots from ``first`` on into ``[slots, slot_bytes]``, contiguous; returns their
        entries, as 0 where the slot did not have one block all the time.

        ``past_cache``: what is not in the page cache goes from the disk into ``slots``, which begin
        with a page, without a copy on the way, and is not in the page cache afterwards.
        """
        known = self.entries[first : first + len(slots)].copy()
        if not self._reader.read(slots.reshape(-1), self.layout.slot_at(first), past_cache):
            return np.zeros(len(slots), ENTRY)  # it was cut
        raw = self._read(self.layout.entry_at(first), len(slots) * ENTRY.itemsize)
        known[~same(np.frombuffer(raw, ENTRY), known)] = np.zeros((), ENTRY)
        return known

    def sync(self) -> None:
        """Wait until what was written would survive a loss of power."""
        os.fdatasync(self._fd)

    def uses(self) -> Uses:
        size = self.layout.slots * USE.itemsize
        return np.frombuffer(self._read(self.layout.uses_at, size), USE).copy()

    def uses_mark(self) -> int:
        """A number that changes whenever somebody writes uses."""
        (mark,) = USED.unpack(self._read(USED_AT, USED.size))
        return int(mark)

    def put_uses(self, slots: Sequence[int], uses: Uses) -> int:
        """Write the uses of some slots, ascending, of a table of all; returns the mark that says
        so. What others have noted of them since :meth:`uses` is lost."""
        for first, end in _runs(slots):
            rows = uses[slots[first] : slots[end - 1] + 1]
            at = self.layout.uses_at + slots[first] * USE.itemsize
            _write(self._fd, [memoryview(rows.tobytes())], at)
        mark = secrets.randbits(64)
        _write(self._fd, [memoryview(USED.pack(mark))], USED_AT)
        return mark

    def _write_entries(self, slots: Sequence[int], entries: Entries) -> None:
        self._begin()
        for first, end in _runs(slots):
            _write(
                self._fd,
                [memoryview(entries[first:end].tobytes())],
                self.layout.entry_at(slots[first]),
            )
        self.entries[np.array(slots)] = entries

    def _begin(self) -> None:
        """Let the number of changes be odd until the lock is given back."""
        if self._change % 2 == 0:
            self._set_change(self._change + 1)

    def _set_change(self, change: int) -> None:
        _write(self._fd, [memoryview(CHANGE.pack(change))], CHANGE_AT)
        self._change = change

    def _read(self, at: int, size: int) -> bytes:
        raw = os.pread(self._fd, size, at)
        if len(raw) < size:
            raise OSError(f"{self.path} was cut")
        return raw


def is_pin(file_name: str) -> bool:
    """Whether a file of this name is a pinned prefix. A copy that somebody has made under another
    name is none: its blocks make room like others."""
    return _PINNED.fullmatch(file_name) is not None


def is_spoilt(path: Path) -> bool:
    """Whether a file can be read, and is no segment of this version, or cut."""
    try:
        fd = open_regular(path)
    except OSError:
        return False  # that says nothing of what is in it
    with open(fd, "rb") as file:
        return _layout_of(file.fileno()) is None


def _layout_of(fd: int) -> SegmentLayout | None:
    """None for a file that is no segment of this version, or cut. Raises OSError."""
    layout = SegmentLayout.of_head(os.pread(fd, PAGE, 0))
    if layout is None or os.fstat(fd).st_size != layout.total_bytes:
        return None
    return layout


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of ``slots`` in which they follow each other."""
    first = 0
    for i in range(1, len(slots) + 1):
        if i == len(slots) or slots[i] != slots[i - 1] + 1:
            yield first, i
            first = i


def _close(reader: FileReader, fd: int) -> None:
    reader.close()
    os.close(fd)


def _rest(parts: list[memoryview], done: int) -> list[memoryview]:
    """What is left of ``parts`` behind the first ``done`` bytes."""
    for i, part in enumerate(parts):
        if done < len(part):
            return [part[done:], *parts[i + 1 :]]
        done -= len(part)
    return []


def _write(fd: int, parts: Sequence[memoryview], at: int) -> None:
    """Write all of ``parts``, one behind the other."""
    for begin in range(0, len(parts), _ROWS):
        left = list(parts[begin : begin + _ROWS])
        while left:
            done = os.pwritev(fd, left, at)
            at += done
            left = _rest(left, done)
