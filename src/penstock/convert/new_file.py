"""A file that is there in full or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError, PenstockError

_SUFFIX: Final = ".partial"


class WriteError(PenstockError):
    """A file could not be written."""


def require_absent(path: Path, replace: bool) -> None:
    """Raise ConfigError if a file cannot be written to ``path``: where one is there already that
    is not to be replaced, or where there is no folder for it."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file that is to be written")
    if os.path.lexists(path) and not replace:
        raise ConfigError(f"{path} is there already; replace it with --force, or name another file")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}; make it, or name another file")


@contextmanager
def new_file(path: Path, size: int, replace: bool) -> Iterator[int]:
    """A descriptor of ``size`` bytes, all 0, which become the file ``path`` at the end.

    Until then they are in a file beside it, which goes away where the work fails or is interrupted.
    Its room is reserved before it is filled, so that a disk that is too full refuses at once.
    Raises ConfigError as :func:`require_absent` does, and WriteError where the system refuses.
    """
    require_absent(path, replace)
    try:
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_SUFFIX, dir=path.parent)
    except OSError as error:
        raise WriteError(f"cannot write to {path.parent}: {error.strerror}") from error
    try:
        try:
            _reserve(fd, size)
            yield fd
            os.fchmod(fd, 0o666 & ~_umask())
            os.fsync(fd)
            require_absent(path, replace)
            os.replace(name, path)
            _sync_folder(path.parent)
        except OSError as error:
            raise WriteError(f"cannot write {path}: {_reason(error, size)}") from error
        finally:
            os.close(fd)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _reserve(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write ``data`` at ``offset``. Raises OSError."""
    left = memoryview(data)
    while len(left):
        written = os.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written


def _reason(error: OSError, size: int) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"there is no room for its {size:,} bytes; name a file on another disk"
    return error.strerror or type(error).__name__


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
