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
from penstock.written_file import sync_folder

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


class NewFile:
    """A file of a known size that does not have its name yet, written from any thread."""

    def __init__(self, fd: int, path: Path, size: int) -> None:
        self._fd, self._path, self._size = fd, path, size

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write ``data`` at ``offset``. Raises WriteError where the system refuses."""
        left = memoryview(data)
        with _reported(self._path, self._size):
            while len(left):
                written = os.pwrite(self._fd, left, offset)
                left, offset = left[written:], offset + written


@contextmanager
def new_file(path: Path, size: int, replace: bool) -> Iterator[NewFile]:
    """``size`` bytes, all 0, which become the file ``path`` at the end.

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
            with _reported(path, size):
                _reserve(fd, size)
            yield NewFile(fd, path, size)
            with _reported(path, size):
                os.fchmod(fd, 0o666 & ~_umask())
                os.fsync(fd)
        finally:
            os.close(fd)
        with _reported(path, size):
            _name(name, path, replace)
            sync_folder(path.parent)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


@contextmanager
def _reported(path: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {path}: {_reason(error, size)}") from error


def _name(name: str, path: Path, replace: bool) -> None:
    """Give the file its name. A link refuses a name that somebody else has taken meanwhile, which
    a check before renaming may miss; file systems without links rename."""
    require_absent(path, replace)
    if not replace:
        try:
            os.link(name, path)
        except FileExistsError:
            require_absent(path, replace)
            raise
        except OSError:
            pass
        else:
            os.unlink(name)
            return
    os.replace(name, path)


def _reserve(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)


def _reason(error: OSError, size: int) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"there is no room for its {size:,} bytes; name a file on another disk"
    return error.strerror or type(error).__name__


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
