"""The directory that the engines of a machine share.

It has a file with its limit, and a folder for each kind of blocks, named by the digest of all that
their bytes depend on; in that are segments. Whoever makes or removes segments or folders holds the
directory's lock. In the folder of a kind is a file that each engine locks, too, for as long as it
uses the folder. All files are this user's alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import StoreError
from penstock.kvstore.rates import RATES
from penstock.kvstore.segment import SUFFIX, UNFINISHED, is_pin

ABOUT: Final = "about.json"
"""The file in the folder of a kind that says what its blocks are of."""
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER: Final = "kv-"
_LIMIT: Final = "limit"
_LOCK: Final = "lock"
_USERS: Final = "users"


@dataclass(frozen=True)
class SegmentFile:
    """A segment as the directory has it, whether or not it is one that can be read."""

    path: Path
    bytes: int
    used_at: float
    """When it was written last, uses included: seconds since 1970."""

    @property
    def is_pinned(self) -> bool:
        return is_pin(self.path.name)

    @property
    def is_unfinished(self) -> bool:
        return self.path.name.startswith(UNFINISHED)


def kind_folders(root: Path) -> list[Path]:
    """The folders of all kinds in a directory. Raises OSError."""
    return sorted(
        path
        for path in root.iterdir()
        if path.name.startswith(_FOLDER) and not path.is_symlink() and path.is_dir()
    )


def kind_folder(root: Path, digest: bytes) -> Path:
    """Where blocks of a kind are, or would be."""
    return root / f"{_FOLDER}{digest.hex()}"


def files_of(folder: Path) -> list[SegmentFile]:
    """The segments in a folder, which may be gone."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(SUFFIX) or not entry.is_file(follow_symlinks=False):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                found.append(SegmentFile(Path(entry.path), status.st_size, status.st_mtime))
    return found


def total_bytes(files: Iterable[SegmentFile]) -> int:
    return sum(file.bytes for file in files)


def use_folder(folder: Path) -> int:
    """Count as one who uses the folder of a kind, until the descriptor that is returned is closed.
    The directory's lock is held. Raises OSError."""
    users = os.open(folder / _USERS, _FLAGS, 0o600)
    try:
        fcntl.flock(users, fcntl.LOCK_SH)
    except BaseException:
        os.close(users)
        raise
    return users


def is_used(folder: Path) -> bool:
    """Whether an engine uses the folder of a kind. The directory's lock is held. Raises OSError."""
    try:
        users = os.open(folder / _USERS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(users)
    return False


def write_about(folder: Path, about: bytes) -> None:
    """Say in the folder of a kind what its blocks are of, unless it is said. Raises OSError."""
    path = folder / ABOUT
    # An empty file is left where its writer was killed, or there was no power.
    if not path.exists() or path.stat().st_size == 0:
        path.unlink(missing_ok=True)
        _write_new(path, about)


def limit_of(root: Path) -> int | None:
    """The limit that an engine has set last; None where none is known."""
    try:
        with open(root / _LIMIT, "rb") as file:
            text = file.read(32)
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else None


def set_limit(root: Path, limit: int) -> None:
    """Note the limit for those who are no engine. Raises OSError."""
    if limit_of(root) != limit:
        (root / _LIMIT).unlink(missing_ok=True)
        _write_new(root / _LIMIT, str(limit).encode())


def open_lock(root: Path) -> int:
    """A descriptor of the directory's lock, for :func:`locked`. Raises OSError."""
    return os.open(root / _LOCK, _FLAGS, 0o600)


@contextlib.contextmanager
def directory_lock(root: Path) -> Iterator[None]:
    """Keep all others from making and removing segments and folders. Raises OSError."""
    lock = open_lock(root)
    try:
        with locked(lock):
            yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def locked(lock: int) -> Iterator[None]:
    """As :func:`directory_lock`, by a descriptor of the lock."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def remove_empty(root: Path, digest: bytes) -> None:
    """Remove the folder of a kind that has no segment and that no engine uses. Raises OSError."""
    path = kind_folder(root, digest)
    with directory_lock(root):
        if not path.is_dir() or files_of(path) or is_used(path):
            return
        for name in (ABOUT, RATES, _USERS):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def require_own(folder: Path) -> None:
    """Raise StoreError unless this user or root alone can write into a folder: what is read there
    becomes part of answers."""
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise StoreError(f"{folder} belongs to somebody else; name a folder of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(f"others can write into {folder}; `chmod go-w` it if it is yours")


def _write_new(path: Path, content: bytes) -> None:
    with contextlib.suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(content)
