"""A lock between processes that nobody holds after death."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@contextlib.contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Whether the lock file ``path`` is ours within; with ``wait``, it always is.

    The file is created, and removed at the end. The kernel takes the lock (flock) from an owner
    that dies, however it dies; the file it leaves behind excludes nobody. Raises OSError.
    """
    fd = _acquire(path, wait)
    if fd is None:
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _acquire(path: Path, wait: bool) -> int | None:
    while True:
        fd = os.open(path, _FLAGS, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # The owner that we waited for has removed its file, and another may exist by now.
            if _is_at(fd, path):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
