"""Opens files of models safely: somebody may have put something else in their place.

Opening a FIFO waits until somebody writes into it, devices do whatever they do, and a file of a
terabyte fills memory. What is not a regular file, or is larger than its kind can be, is an OSError
that says so.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

MAX_JSON: Final = 1 << 28
"""Bytes of a configuration, an index or a tokenizer. The largest tokenizers have 40 MB."""

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> int:
    """A descriptor for reading ``path``, within the folder ``dir_fd`` where that is given.

    Never waits. Raises OSError, also for what is not a regular file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(path, flags, dir_fd=dir_fd)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "of another kind")
    raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def read_regular(path: str | Path, most: int = MAX_JSON, *, dir_fd: int | None = None) -> bytes:
    """The bytes of a regular file. Raises OSError, also for one of more than ``most`` bytes."""
    with open(open_regular(path, dir_fd=dir_fd), "rb") as file:
        large = os.fstat(file.fileno()).st_size > most
        text = b"" if large else file.read(most + 1)
    if large or len(text) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return text
