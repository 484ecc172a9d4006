"""Reads a file through the page cache, or past it (direct I/O)."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from penstock.interface.blocks import Bytes
from penstock.kvstore.cached_pages import CachedPages
from penstock.kvstore.layout import PAGE


class FileReader:
    """Reads whole pages of a file into memory. Any thread; methods raise OSError.

    Past the page cache (``O_DIRECT``) a disk writes into the memory itself: of 267 MB that takes
    15 ms of a core where copies out of the cache, whose pages are made for it, take 100 to 250 ms,
    and the disk is faster besides (docs/kv-tiers.md has the measurements). File systems that cannot
    are read through the cache.
    """

    def __init__(self, path: Path, fd: int) -> None:
        """``fd``: the file's own descriptor, which stays the caller's; ``path``: its name, by which
        it is opened once more."""
        self._path = path
        self._fd = fd
        self._mutex = threading.Lock()
        self._direct: int | None = None
        """A descriptor that reads past the cache: None before it was asked for, and the file's own
        where there is none such."""
        self._cached = CachedPages(fd)

    def read(self, memory: Bytes, at: int, past_cache: bool) -> bool:
        """Fill ``memory`` with what is at ``at`` in the file; returns whether that is so much.

        ``past_cache``: only what is in the page cache comes from there. ``memory`` begins with
        a page then, and it and ``at`` are whole pages.
        """
        left = memory.data
        if past_cache:
            done = self._read_cached(left, at)
            left, at = left[done:], at + done
            while left:
                done = self._read_past(left, at)
                if done == 0:
                    return False
                left, at = left[done:], at + done
        while left:
            done = os.preadv(self._fd, [left], at)
            if done == 0:
                return False
            left, at = left[done:], at + done
        return True

    def close(self) -> None:
        """Close what was opened here."""
        self._cached.close()
        if self._direct is not None and self._direct != self._fd:
            os.close(self._direct)
        self._direct = self._fd

    def _read_cached(self, left: memoryview, at: int) -> int:
        """Read what is in the page cache, up to the first page that is not; returns how many bytes,
        whole pages."""
        size = self._cached.bytes_at(at, len(left))
        if size == 0:
            return 0
        done = os.preadv(self._fd, [left[:size]], at)
        return done - done % PAGE

    def _read_past(self, left: memoryview, at: int) -> int:
        fd = self._open_direct()
        try:
            done = os.preadv(fd, [left], at)
        except OSError:
            if fd == self._fd:
                raise
            done = 0
        if done % PAGE == 0 and done > 0:
            return done
        return os.preadv(self._fd, [left], at)  # whatever it was says so here, if it is not gone

    def _open_direct(self) -> int:
        with self._mutex:
            if self._direct is None:
                self._direct = self._fd
                with contextlib.suppress(OSError):
                    fd = os.open(
                        self._path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW
                    )
                    if os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
                        self._direct = fd
                    else:  # the name is another file's by now
                        os.close(fd)
            return self._direct
