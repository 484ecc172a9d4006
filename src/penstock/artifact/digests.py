"""The digests of weight files that were hashed before, kept beside the artifacts."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import msgspec

from penstock.artifact.files import require_trusted
from penstock.errors import ArtifactError
from penstock.regular_file import open_regular
from penstock.weights.identity import FileStamp

DIGESTS: Final = "digests.json"
_MOST: Final = 4096
"""Maximum number of digests kept, the latest ones. Each shard of a checkpoint has one."""
_MAX_BYTES: Final = 1 << 22
_LEFT_S: Final = 3600.0
"""Age in seconds from which a leftover file is taken to have no writer any more."""


class _Kept(msgspec.Struct, frozen=True):
    stamp: FileStamp
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class DigestFile:
    """Digests by stamp, read from a folder's ``digests.json`` and, on :meth:`save`, put there.

    It only saves time: what cannot be read, or was not written by this user, counts as nothing
    remembered, and of two processes that save at once one is remembered.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DIGESTS
        self._digests = self._read()
        self._added: dict[FileStamp, str] = {}

    def find(self, stamp: FileStamp) -> str | None:
        return self._added.get(stamp) or self._digests.get(stamp)

    def remember(self, stamp: FileStamp, digest: str) -> None:
        self._added[stamp] = digest

    def save(self) -> None:
        """Put what was added into the file, if its folder is there and can be written."""
        if not self._added:
            return
        together = {**self._read(), **self._added}
        kept = [_Kept(*item) for item in list(together.items())[-_MOST:]]
        self._clean()
        with contextlib.suppress(OSError):
            fd, name = tempfile.mkstemp(dir=self._path.parent, prefix=f"{DIGESTS}.")
            new = Path(name)
            try:
                with open(fd, "wb") as file:
                    file.write(msgspec.json.encode(kept))
                new.rename(self._path)
            except OSError:
                new.unlink(missing_ok=True)
                raise
            self._digests, self._added = together, {}

    def _clean(self) -> None:
        """Remove what processes left that were killed while they saved."""
        old = time.time() - _LEFT_S
        for path in self._path.parent.glob(f"{DIGESTS}.*"):
            with contextlib.suppress(OSError):  # another process may clean, too
                if path.lstat().st_mtime < old:
                    path.unlink()

    def _read(self) -> dict[FileStamp, str]:
        try:
            with open(open_regular(self._path), "rb") as file:
                require_trusted(file.fileno(), str(self._path))
                kept = msgspec.json.decode(file.read(_MAX_BYTES), type=list[_Kept])
        except (OSError, ArtifactError, ValueError, RecursionError):
            return {}
        return {entry.stamp: entry.digest for entry in kept}
