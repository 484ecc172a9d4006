"""The folder that files and batches are kept in.

::

    lock                     held by the server that has the folder
    files/ID.data            the content of a file
    files/ID.json            what is known of it; a file without this is not there
    batches/ID.json          a batch, and whose it is

A document is replaced as a whole, by a rename, and a file's content is there before its document.
The output files of a batch that runs have no document yet, and each line of theirs is one write: a
process that is killed leaves at most a line without its end, which is cut off when the file is
opened again. So what a server wrote is what its successor finds.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from penstock.errors import ConfigError
from penstock.server.callers import Caller
from penstock.server.openai.batches.protocol import ENDED, Batch, FileObject

PRIORITY: Final = 1000
"""The best priority of a batch's requests: live ones go first (lower goes first)."""
_BLOCK: Final = 1 << 20

T = TypeVar("T", bound=msgspec.Struct)


class Owner(msgspec.Struct, frozen=True):
    """Who has sent a file or a batch: nobody else finds it."""

    key: str | None = None
    """Fingerprint of the key, where the server asks for one."""
    name: str = ""
    """The tenant of the engine, with its weight."""
    weight: float = 1.0

    @property
    def caller(self) -> Caller:
        return Caller(self.name, self.weight, best_priority=None, behind=PRIORITY)

    def owns(self, other: Owner) -> bool:
        return self.key == other.key


class KeptFile(msgspec.Struct, frozen=True):
    file: FileObject
    owner: Owner


class KeptBatch(msgspec.Struct, frozen=True):
    batch: Batch
    owner: Owner


class BatchStore:
    """Files and batches in a folder, of which this process is the only user."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError for a folder that cannot be used, or that another server uses."""
        self._files, self._batches = folder / "files", folder / "batches"
        try:
            self._files.mkdir(parents=True, exist_ok=True)
            self._batches.mkdir(exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"--batch-dir {folder} cannot be used: {error.strerror}; name a folder elsewhere"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(
                f"--batch-dir {folder} is in use by another server; name another folder"
            ) from None
        self.files = {kept.file.id: kept for kept in _read(self._files, KeptFile)}
        self.batches = {kept.batch.id: kept for kept in _read(self._batches, KeptBatch)}
        running = [k.batch.id for k in self.batches.values() if k.batch.status not in ENDED]
        for path in self._files.glob("*.data"):  # of uploads and deletions that were cut short
            if path.stem not in self.files and not path.stem.startswith(
                tuple(f"file-{batch}-" for batch in running)
            ):
                path.unlink()

    def close(self) -> None:
        """Leave the folder to others."""
        os.close(self._lock)

    async def add_file(self, file: FileObject, owner: Owner, data: bytes) -> None:
        """Keep a file; others go on while the disk takes it. Raises OSError."""
        path = self.data(file.id)
        try:
            await asyncio.to_thread(_write, path, data)
            self.announce(file, owner)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def announce(self, file: FileObject, owner: Owner) -> None:
        """Make a file whose content is there one of those that are kept. Raises OSError."""
        kept = KeptFile(file, owner)
        _replace(self._files / f"{file.id}.json", kept)
        self.files[file.id] = kept

    def delete_file(self, file_id: str) -> None:
        """Forget a file. Raises OSError."""
        (self._files / f"{file_id}.json").unlink(missing_ok=True)
        self.files.pop(file_id, None)
        self.data(file_id).unlink(missing_ok=True)

    def data(self, file_id: str) -> Path:
        """The path of a file's content."""
        return self._files / f"{file_id}.data"

    def keep_batch(self, batch: Batch, owner: Owner) -> None:
        """Keep a batch as it is now. Raises OSError."""
        kept = KeptBatch(batch, owner)
        _replace(self._batches / f"{batch.id}.json", kept)
        self.batches[batch.id] = kept


class LineFile:
    """A file that lines are added to, each by one write; it may have some already."""

    def __init__(self, path: Path) -> None:
        """Raises OSError. A last line without its end is cut off."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._end = _whole(self._fd)
        os.ftruncate(self._fd, self._end)

    @property
    def size(self) -> int:
        return self._end

    def lines(self) -> Iterator[bytes]:
        """The lines that are there."""
        rest, at = b"", 0
        while at < self._end:
            block = os.pread(self._fd, min(_BLOCK, self._end - at), at)
            at += len(block)
            *whole, rest = (rest + block).split(b"\n")
            yield from whole

    def add(self, line: bytes) -> None:
        """Raises OSError; what was written of the line is then no part of the file."""
        data, at = memoryview(line + b"\n"), self._end
        while data:
            written = os.pwrite(self._fd, data, at)
            data, at = data[written:], at + written
        self._end = at

    def sync(self) -> None:
        """Have the lines on disk. Raises OSError."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Leave no other line in the file. Raises OSError."""
        try:
            os.ftruncate(self._fd, self._end)
        finally:
            os.close(self._fd)


def _whole(fd: int) -> int:
    """The end of the last whole line."""
    at = os.fstat(fd).st_size
    while at > 0:
        first = max(at - _BLOCK, 0)
        newline = os.pread(fd, at - first, first).rfind(b"\n")
        if newline >= 0:
            return first + newline + 1
        at = first
    return 0


def _read(folder: Path, kind: type[T]) -> Iterator[T]:
    """The documents of a folder, by their paths' order. Raises ConfigError for one that is
    damaged."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{path} cannot be read: {error}; remove it") from error


def _replace(path: Path, document: msgspec.Struct) -> None:
    """Write a document, whole or not at all. Raises OSError."""
    partial = path.with_suffix(".partial")
    _write(partial, msgspec.json.encode(document))
    os.replace(partial, path)


def _write(path: Path, data: bytes) -> None:
    """Have a file on disk. Raises OSError."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
