"""Which pages of a file are in the page cache."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from typing import Final

import numpy as np

from penstock.kvstore.layout import PAGE

_UNKNOWN: Final = -1


class CachedPages:
    """Asks ``mincore``, which reads nothing. Any thread.

    A read that must not wait (``RWF_NOWAIT``) would tell, too, but starts a readahead of up to
    8 MiB, which is then read past the page cache once more.
    """

    def __init__(self, fd: int) -> None:
        """``fd`` stays the caller's."""
        self._fd = fd
        self._mutex = threading.Lock()
        self._map: mmap.mmap | None = None
        """Gives the pages the addresses that ``mincore`` is asked of; none is ever touched."""
        self._address = _UNKNOWN

    def bytes_at(self, at: int, size: int) -> int:
        """How many of ``size`` bytes from ``at`` on, whole pages, are in memory, up to the first
        page that is not; 0 where that cannot be known."""
        address = self._mapped()
        if address == 0 or size == 0 or at % mmap.PAGESIZE:
            return 0
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        mincore = getattr(ctypes.CDLL(None), "mincore", None)
        if mincore is None:
            return 0
        told = mincore(
            ctypes.c_void_p(address + at), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
        )
        if told != 0:  # it was cut, say
            return 0
        lacking = np.flatnonzero(pages & 1 == 0)
        found = size if len(lacking) == 0 else int(lacking[0]) * mmap.PAGESIZE
        return min(found, size) // PAGE * PAGE

    def close(self) -> None:
        with self._mutex:
            if self._map is not None:
                self._map.close()
            self._map, self._address = None, 0

    def _mapped(self) -> int:
        """Where the file is mapped; 0 where it cannot be."""
        with self._mutex:
            if self._address == _UNKNOWN:
                self._address = 0
                with contextlib.suppress(OSError, ValueError):
                    self._map = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
                    self._address = np.frombuffer(self._map, np.uint8).ctypes.data
            return self._address
