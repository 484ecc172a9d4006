"""Waking a thread that waits for file descriptors."""

from __future__ import annotations

import contextlib
import os
import weakref


class Wake:
    """A pipe that is readable once somebody has called :meth:`set`, until :meth:`clear`."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._end = weakref.finalize(self, _close, self.fd, self._write)

    def set(self) -> None:
        """Make it readable. Any thread may."""
        with contextlib.suppress(BlockingIOError):  # it is full, and so readable
            os.write(self._write, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.fd, 4096)) == 4096:
                pass


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
