"""An engine's place in the directory that it shares with others (``directory.py``): segments are
made there, and those of others give way, so that all of them together stay below the limit.

Those of kinds that no engine uses give way first. Segments of pinned prefixes give way to nothing;
all of them together take at most a share of the limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.cache.prefix import Key
from penstock.errors import StoreError
from penstock.kvstore.directory import (
    SegmentFile,
    files_of,
    is_used,
    kind_folder,
    kind_folders,
    locked,
    open_lock,
    require_own,
    set_limit,
    total_bytes,
    use_folder,
    write_about,
)
from penstock.kvstore.layout import SegmentLayout
from penstock.kvstore.segment import PIN, SUFFIX, Segment, is_pin, is_spoilt
from penstock.written_file import sync_folder

PINNED_SHARE: Final = 0.5
"""The part of the limit that pinned prefixes may take."""
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk, or a user's part of it, that is full."""


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
        require_own(root)
        with contextlib.ExitStack() as stack:
            self._lock = open_lock(root)
            stack.callback(os.close, self._lock)
            with self._locked():  # whoever removes a folder that nobody uses has the lock as well
                self.path.mkdir(mode=0o700, exist_ok=True)
                require_own(self.path)
                self._users = use_folder(self.path)
                stack.callback(os.close, self._users)
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
        return [file.path for file in files_of(self.path) if not file.is_unfinished]

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
            pinned = total_bytes(each for each in files if each.is_pinned)
            check_share(layout.total_bytes, self._limit, pinned)
            replaced = total_bytes(files) - self._bytes()
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
        write_about(self.path, about)
        set_limit(self.root, self._limit)
        while self._bytes() > self._limit and (path := self._yielding()) is not None:
            path.unlink(missing_ok=True)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return locked(self._lock)

    def _kinds(self) -> dict[Path, list[SegmentFile]]:
        return {path: files_of(path) for path in kind_folders(self.root)}

    def _bytes(self) -> int:
        return sum(map(total_bytes, self._kinds().values()))

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
        idle = [file for path, files in kinds.items() if not is_used(path) for file in files]
        if idle:
            return min(idle, key=_used_at).path
        used = [files for files in kinds.values() if files]
        if new is None:
            used += [mine] if mine else []
        elif mine and total_bytes(mine) + new > limit / (len(used) + 1):
            return None
        if not used:
            return None
        return min(max(used, key=total_bytes), key=_used_at).path

    def _clean(self) -> None:
        """Remove what was left by processes that ended while they made a segment: who makes one
        has the lock."""
        for files in self._kinds().values():
            for file in files:
                if file.is_unfinished:
                    file.path.unlink(missing_ok=True)


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


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _used_at(file: SegmentFile) -> float:
    return file.used_at


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
