"""The directory that the engines of a machine share, and its limit.

It has a file with its limit, and a folder for each kind of blocks, named by the digest of all that
their bytes depend on; in that are segments. Whoever makes or removes segments holds the directory's
lock, so all of them together stay below the limit. A folder that an engine uses is locked by it,
too: what nobody uses gives way first. Segments of pinned prefixes give way to nothing; all of them
together take at most a share of the limit.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.cache.prefix import Key
from penstock.errors import StoreError
from penstock.kvstore.layout import SegmentLayout
from penstock.kvstore.rates import RATES
from penstock.kvstore.segment import PIN, SUFFIX, UNFINISHED, Segment, is_pin, is_spoilt
from penstock.written_file import sync_folder

PINNED_SHARE: Final = 0.5
"""The part of the limit that pinned prefixes may take."""
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk, or a user's part of it, that is full."""
_FOLDER: Final = "kv-"
_LIMIT: Final = "limit"
_LOCK: Final = "lock"
_USERS: Final = "users"
ABOUT: Final = "about.json"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True)
class _File:
    path: Path
    bytes: int
    used_at: float
    """When it was written last, uses included."""

    @property
    def is_pinned(self) -> bool:
        return is_pin(self.path.name)


class StoreFolder:
    """One engine's place in a directory of segments. Methods raise OSError; not thread-safe."""

    def __init__(self, root: Path, digest: bytes, about: bytes, limit: int) -> None:
        """Open the directory, or make it. ``about`` says in JSON what ``digest`` is of, for people;
        ``limit``: most bytes of all segments of the directory.

        Raises StoreError if others than this user can write there, or it is no directory.
        """
        self.root = root
        self.digest = digest
        self.path = kind_folder(root, digest)
        self._limit = limit
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise StoreError(f"{error.filename} is no folder, but {_other(error)}") from None
        _require_own(root)
        with contextlib.ExitStack() as stack:
            self._lock = os.open(root / _LOCK, _FLAGS, 0o600)
            stack.callback(os.close, self._lock)
            with self._locked():  # whoever removes a folder that nobody uses has the lock as well
                self.path.mkdir(mode=0o700, exist_ok=True)
                _require_own(self.path)
                self._users = os.open(self.path / _USERS, _FLAGS, 0o600)
                stack.callback(os.close, self._users)
                fcntl.flock(self._users, fcntl.LOCK_SH)
                self._begin(about)
            stack.pop_all()
        self.close = weakref.finalize(self, _close, self._users, self._lock)
        """Give the folder back, once; also where it is called again."""

    @property
    def is_removed(self) -> bool:
        """Whether the directory, or this engine's part of it, is not there any more."""
        return os.fstat(self._users).st_nlink == 0

    def segments(self) -> list[Path]:
        """The files of this engine's kind."""
        return [file.path for file in _files(self.path) if not _is_unfinished(file.path)]

    def make(self, layout: SegmentLayout) -> Segment | None:
        """Make a segment, for which others may have to give way; None where the limit does not
        allow it, so that this engine's own blocks must make room.

        Raises OSError where it is the disk that does not (:data:`NO_ROOM`).
        """
        path = self.path / f"{secrets.token_hex(8)}{SUFFIX}"
        limit, full = self._limit, None
        with self._locked():
            while True:
                if self._bytes() + layout.total_bytes <= limit:
                    try:
                        return Segment.create(path, layout)
                    except OSError as error:
                        if error.errno not in NO_ROOM:
                            raise
                        limit, full = self._bytes(), error
                victim = self._yielding(layout.total_bytes, limit)
                if victim is None:
                    break
                victim.unlink(missing_ok=True)
        if full is not None:
            raise full
        return None

    def free_bytes(self) -> int:
        """Bytes that the disk has room for."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def pin(
        self, tail: Key, layout: SegmentLayout, about: bytes, fill: Callable[[Segment], None]
    ) -> bool:
        """Make a segment of a pinned prefix, of which ``tail`` is the last block, for which others
        give way; returns whether it was not there before. ``about`` and ``fill`` are as for
        :meth:`Segment.create`.

        Raises StoreError where it would take more than the share of pinned prefixes.
        """
        path = self.path / f"{PIN}{tail.hex()}{SUFFIX}"
        with self._locked():
            self._clean()
            if _is_full(path, layout):
                return False
            # One that is there lacks a block, which was damaged, and is replaced.
            files = [file for kind in self._kinds().values() for file in kind if file.path != path]
            pinned = _sum(each for each in files if each.is_pinned)
            check_share(layout.total_bytes, self._limit, pinned)
            replaced = _sum(files) - self._bytes()
            while self._bytes() + replaced + layout.total_bytes > self._limit:
                if (victim := self._yielding()) is None:
                    break
                victim.unlink(missing_ok=True)
            Segment.create(path, layout, about, fill).close()
            sync_folder(self.path)  # or a loss of power might take its name
        return True

    def clear(self) -> None:
        """Remove all segments of this engine's kind that are not pinned."""
        with self._locked():
            for path in self.segments():
                if not is_pin(path.name):
                    path.unlink(missing_ok=True)

    def _begin(self, about: bytes) -> None:
        """Clean up, say what is here, and keep to the limit. The lock is held."""
        self._clean()
        if not _has_content(self.path / ABOUT):
            (self.path / ABOUT).unlink(missing_ok=True)
            _write_new(self.path / ABOUT, about)
        if limit_of(self.root) != self._limit:
            (self.root / _LIMIT).unlink(missing_ok=True)
            _write_new(self.root / _LIMIT, str(self._limit).encode())
        while self._bytes() > self._limit and (path := self._yielding()) is not None:
            path.unlink(missing_ok=True)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return _locked(self._lock)

    def _kinds(self) -> dict[Path, list[_File]]:
        return {path: _files(path) for path in kind_folders(self.root)}

    def _bytes(self) -> int:
        return sum(map(_sum, self._kinds().values()))

    def _yielding(self, new: int | None = None, limit: int = 0) -> Path | None:
        """The segment that gives way: one of this kind that cannot be read any more, or else the
        least recently used one of a kind that no engine uses, or else of the kind that has most;
        none that is pinned.

        ``new``: the bytes of a new segment for which it does; then none does in whose place this
        kind would have more than an equal share of the ``limit``.
        """
        kinds = {
            path: [file for file in files if not file.is_pinned]
            for path, files in self._kinds().items()
        }
        mine = kinds.pop(self.path, [])
        spoilt = next((file.path for file in mine if is_spoilt(file.path)), None)
        if spoilt is not None:
            return spoilt
        idle = [file for path, files in kinds.items() if not _in_use(path) for file in files]
        if idle:
            return min(idle, key=_used_at).path
        in_use = [files for files in kinds.values() if files]
        if new is None:
            in_use += [mine] if mine else []
        elif mine and _sum(mine) + new > limit / (len(in_use) + 1):
            return None
        if not in_use:
            return None
        return min(max(in_use, key=_sum), key=_used_at).path

    def _clean(self) -> None:
        """Remove what was left by processes that ended while they made a segment: who makes one
        has the lock."""
        for files in self._kinds().values():
            for file in files:
                if _is_unfinished(file.path):
                    file.path.unlink(missing_ok=True)


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


def check_share(size: int, limit: int, pinned: int = 0) -> None:
    """Raise StoreError where a prefix of so many bytes would take more than the share of pinned
    ones, which take ``pinned`` bytes."""
    most = int(limit * PINNED_SHARE)
    if pinned + size > most:
        raise StoreError(
            f"the prefix takes {size:,} bytes, and {pinned:,} of the {most:,} that may be pinned "
            f"are taken ({PINNED_SHARE:.0%} of the folder's {limit:,}); remove another one, or "
            "give --kv-disk a larger size"
        )


def remove_empty(root: Path, digest: bytes) -> None:
    """Remove the folder of a kind that has no segment and that no engine uses. Raises OSError."""
    path = kind_folder(root, digest)
    with directory_lock(root):
        if not path.is_dir() or _files(path) or _in_use(path):
            return
        for name in (ABOUT, RATES, _USERS):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def limit_of(root: Path) -> int | None:
    """The limit that an engine has set last; None where none is known."""
    try:
        with open(root / _LIMIT, "rb") as file:
            text = file.read(32)
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else None


@contextlib.contextmanager
def directory_lock(root: Path) -> Iterator[None]:
    """Keep all others from making and removing segments. Raises OSError."""
    lock = os.open(root / _LOCK, _FLAGS, 0o600)
    try:
        with _locked(lock):
            yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _locked(lock: int) -> Iterator[None]:
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _is_unfinished(path: Path) -> bool:
    return path.name.startswith(UNFINISHED)


def _files(folder: Path) -> list[_File]:
    """The segments in a folder, which may be gone."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(SUFFIX) or not entry.is_file(follow_symlinks=False):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                found.append(_File(Path(entry.path), status.st_size, status.st_mtime))
    return found


def _sum(files: Iterable[_File]) -> int:
    return sum(file.bytes for file in files)


def _used_at(file: _File) -> float:
    return file.used_at


def _in_use(folder: Path) -> bool:
    """Whether an engine uses the folder."""
    try:
        fd = os.open(folder / _USERS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _require_own(folder: Path) -> None:
    """Raise StoreError unless this user or root alone can write into a folder: what is read there
    becomes part of answers."""
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise StoreError(f"{folder} belongs to somebody else; name a folder of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(f"others can write into {folder}; `chmod go-w` it if it is yours")


def _other(error: FileExistsError) -> str:
    """What is where a folder was to be made."""
    path = Path(error.filename)
    return f"a link to {path.readlink()}, where none is" if path.is_symlink() else "a file"


def _is_full(path: Path, layout: SegmentLayout) -> bool:
    """Whether a segment is there, with a block in each of its slots."""
    with contextlib.suppress(FileNotFoundError):
        segment = Segment.open(path)
        if segment is not None:
            full = segment.layout == layout and len(segment.refresh()) == layout.slots
            segment.close()
            return full
    return False


def _has_content(path: Path) -> bool:
    """Whether a file is there that is not empty, as one is whose writer was killed or had no
    power."""
    return path.exists() and path.stat().st_size > 0


def _write_new(path: Path, content: bytes) -> None:
    with contextlib.suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(content)
