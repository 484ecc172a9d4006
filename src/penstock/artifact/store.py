"""The folder that holds artifacts, shared by any number of processes.

Beside an artifact ``NAME`` there may be, while one is written or removed and after a process that
did so was killed: ``NAME.lock``, held (flock) by the one that works on it, ``NAME.partial`` and
``NAME.discarded``. A process that can take the lock knows that the owner is done or dead, and may
remove the others. An artifact appears under its name whole, by a rename."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.artifact.files import plain, remove_tree, size
from penstock.artifact.format import (
    CHUNK_BYTES,
    MANIFEST,
    Artifact,
    BuiltLengths,
    Manifest,
    layout,
    write_manifest,
    write_weights,
)
from penstock.artifact.key import ArtifactKey
from penstock.artifact.lock import locked
from penstock.artifact.tuned import MOST_TUNINGS, decode_tunings, encode_tunings
from penstock.errors import ArtifactError
from penstock.interface.tuning import Tuning, put_among
from penstock.interface.weights import PackedRegions
from penstock.written_file import sync_folder

KEEP_FREE: Final = 0.1
"""Share of the file system that stays free when an artifact is kept without being asked for."""

_NEW_MANIFEST: Final = MANIFEST + ".new"
_LOCK, _PARTIAL, _DISCARDED = ".lock", ".partial", ".discarded"
_NAME = re.compile(r"\w[\w.-]*-[0-9a-f]{12}(\.lock|\.partial|\.discarded)?", re.ASCII)


class PendingArtifact(NamedTuple):
    """The contents of a new manifest, apart from what describes the weights' bytes."""

    key: ArtifactKey
    model: str
    """Name of the model, for display and for the folder's name."""
    model_path: str
    """Absolute path of the model."""
    tuned: tuple[Tuning, ...] = ()
    lengths: BuiltLengths | None = None


class Kept(NamedTuple):
    """The result of keeping an artifact."""

    path: Path
    bytes: int
    written: bool
    """Whether this process wrote it. False if another process had written it meanwhile."""
    replaced: tuple[str, ...] = ()
    """Names of the artifacts that were removed: they held earlier weights of the same model."""


class Entry(NamedTuple):
    """One artifact of a store; ``manifest`` is None, and ``problem`` says why, if it is damaged."""

    name: str
    bytes: int
    manifest: Manifest | None
    problem: str


class ArtifactStore:
    """Finds, keeps, lists and removes artifacts under ``root``, which need not exist."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def empty(self) -> bool:
        """Whether there is no artifact. Raises ArtifactError where that cannot be found out."""
        return not self._names()

    def find(
        self, key: ArtifactKey, restored: Callable[[float], None] = lambda part: None
    ) -> Artifact | None:
        """The artifact of ``key``; the caller closes it. None if there is none.

        ``restored`` is that of :class:`Artifact`. Raises ArtifactError where there is
        one that cannot be used.
        """
        for name in self._names():
            if not name.endswith("-" + key.digest()):
                continue
            try:
                self._require_safe_root()
                artifact = Artifact(self.root / name, restored)
            except FileNotFoundError:  # removed this moment
                continue
            if differences := artifact.manifest.key.differences(key):
                artifact.close()
                raise ArtifactError(
                    f"the engine artifact {artifact.path} cannot be used: it is of "
                    + ", ".join(differences)
                )
            return artifact
        return None

    def nearest(self, pending: PendingArtifact) -> str | None:
        """Describe how the artifact most similar to ``pending`` differs from it; None if there is
        none.

        Looks at the same model, rank and stage, quantized likewise: those in whose place
        ``pending`` comes.
        """
        found: list[tuple[int, str]] = []
        for name, _, manifest, _ in self.entries():
            if manifest is None or manifest.model_path != pending.model_path:
                continue
            key, wanted = manifest.key, pending.key
            its, own = (
                (each.dtype, each.linear, each.head, each.rank, each.stage)
                for each in (key, wanted)
            )
            if its == own:
                # Equal keys under another name: it was made before keys had all their fields.
                differences = key.differences(wanted) or ["an earlier form of artifacts"]
                found.append((len(differences), f"{name} is of " + ", ".join(differences)))
        return min(found)[1] if found else None

    def keep(
        self,
        pending: PendingArtifact,
        packed: PackedRegions,
        *,
        wait: bool = False,
        leave_free: float = 0.0,
        damaged: bool = False,
    ) -> Kept | None:
        """Write ``packed`` as the artifact of ``pending``; None if another process is doing so.

        ``wait`` waits for that process instead, and ``leave_free`` is the share of the file system
        that must stay free. An artifact of the same key that can be opened is kept and ``packed``
        is not written, unless ``damaged`` says that the one that was there is. Raises
        ArtifactError with the reason where it cannot be kept; nothing is left behind then.
        """
        key = pending.key
        name = f"{plain(pending.model)}-{key.scheme}-{key.isa}{key.part}-{key.digest()}"
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._require_safe_root()
            with self._lock(name, wait) as mine:
                if not mine:
                    return None
                if not damaged and (present := self._present(pending.key)):
                    return present
                self._discard_leftovers()
                self.require_space(layout(packed.sizes)[1], leave_free)
                return self._write(name, pending, packed)
        except OSError as e:
            raise ArtifactError(f"{e.filename or self.root}: {e.strerror}") from e

    @property
    def any_lengths(self) -> bool:
        """Whether some artifact was built for some lengths."""
        manifests = (entry.manifest for entry in self.entries())
        return any(each is not None and each.lengths is not None for each in manifests)

    def entries(self) -> list[Entry]:
        """Every artifact, by name, damaged ones too."""
        return [self._entry(name) for name in self._names()]

    def add_tuning(self, name: str, tuning: Tuning) -> None:
        """Put ``tuning`` into an artifact's manifest, in place of what cannot be read and of what
        was measured in the same circumstances.

        Raises ArtifactError where the artifact cannot be read or written, or another process is
        at work on it.
        """

        def tuned(manifest: Manifest) -> Manifest:
            try:
                before = decode_tunings(manifest.tuned)
            except ArtifactError:
                before = ()
            after = encode_tunings(put_among(before, tuning, MOST_TUNINGS))
            return msgspec.structs.replace(manifest, tuned=after)

        self._change(name, tuned, wait=False)

    def set_lengths(self, name: str, lengths: BuiltLengths | None) -> None:
        """Say what lengths an artifact is built for, once no other process is at work on it.

        Raises ArtifactError where the artifact cannot be read or written.
        """

        def built(manifest: Manifest) -> Manifest:
            return msgspec.structs.replace(manifest, lengths=lengths)

        self._change(name, built, wait=True)

    def _change(self, name: str, changed: Callable[[Manifest], Manifest], wait: bool) -> None:
        """Put another manifest in the place of an artifact's, where it is another."""
        path = self.root / name
        try:
            with self._lock(name, wait) as mine:
                if not mine:
                    raise ArtifactError(f"another process is at work on {path}")
                with Artifact(path) as artifact:
                    manifest = changed(artifact.manifest)
                    if manifest == artifact.manifest:
                        return
                (path / _NEW_MANIFEST).unlink(missing_ok=True)
                write_manifest(path, manifest, _NEW_MANIFEST)
                (path / _NEW_MANIFEST).rename(path / MANIFEST)
                sync_folder(path)
        except OSError as e:
            raise ArtifactError(f"{e.filename or path}: {e.strerror}") from e

    def remove(self, name: str) -> Entry:
        """Remove the artifact of this name, or of the digest that its name ends in.

        Raises ArtifactError if there is none, several, or it cannot be removed. Processes that use
        it go on: they have read it.
        """
        names = [n for n in self._names() if name == n or n.endswith("-" + name)]
        if len(names) != 1:
            problem = "no engine artifact" if not names else "more than one engine artifact"
            raise ArtifactError(f"{self.root} has {problem} {name!r}")
        entry = self._entry(names[0])
        try:
            with self._lock(entry.name, wait=True):
                self._discard(entry.name)
        except OSError as e:
            raise ArtifactError(f"{e.filename or self.root}: {e.strerror}") from e
        return entry

    def remove_leftovers(self) -> None:
        """Remove what killed processes left. Raises ArtifactError where that cannot be."""
        try:
            self._discard_leftovers()
        except OSError as e:
            raise ArtifactError(f"{e.filename or self.root}: {e.strerror}") from e

    def _write(self, name: str, pending: PendingArtifact, packed: PackedRegions) -> Kept:
        partial = self.root / (name + _PARTIAL)
        remove_tree(partial)
        try:
            partial.mkdir(mode=0o700)
            regions = write_weights(partial, packed)
            manifest = Manifest(
                model=pending.model,
                model_path=pending.model_path,
                key=pending.key,
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                bytes=layout(packed.sizes)[1],
                chunk_bytes=CHUNK_BYTES,
                regions=regions,
                lengths=pending.lengths,
                tuned=encode_tunings(pending.tuned),
            )
            write_manifest(partial, manifest)
            sync_folder(partial)
            self._discard(name)
            partial.rename(self.root / name)
            sync_folder(self.root)
            self._discard_others(name)
        finally:
            remove_tree(partial)
        return Kept(self.root / name, manifest.bytes, True, self._discard_superseded(manifest))

    def _present(self, key: ArtifactKey) -> Kept | None:
        try:
            artifact = self.find(key)
        except ArtifactError:
            return None
        if artifact is None:
            return None
        with artifact:
            return Kept(artifact.path, artifact.manifest.bytes, False)

    def _entry(self, name: str) -> Entry:
        path = self.root / name
        size = 0
        with contextlib.suppress(OSError):
            size = sum(file.stat().st_size for file in path.iterdir())
        try:
            with Artifact(path) as artifact:
                return Entry(name, size, artifact.manifest, "")
        except (ArtifactError, FileNotFoundError) as e:
            return Entry(name, size, None, str(e))

    def _names(self) -> list[str]:
        """Names of artifacts, sorted."""
        return sorted(n for n in self._listed() if not n.endswith((_LOCK, _PARTIAL, _DISCARDED)))

    def _listed(self) -> list[str]:
        try:
            return [n for n in os.listdir(self.root) if _NAME.fullmatch(n)]
        except FileNotFoundError:
            return []
        except OSError as e:
            raise ArtifactError(f"{self.root} cannot be listed: {e.strerror}") from e

    def _lock(self, name: str, wait: bool) -> contextlib.AbstractContextManager[bool]:
        return locked(self.root / (name + _LOCK), wait)

    def _discard(self, name: str) -> None:
        """Remove the artifact ``name``, if there is one, at one stroke. The lock must be held."""
        discarded = self.root / (name + _DISCARDED)
        remove_tree(discarded)
        with contextlib.suppress(FileNotFoundError):
            (self.root / name).rename(discarded)
            remove_tree(discarded)

    def _discard_leftovers(self) -> None:
        suffixes = (_LOCK, _PARTIAL, _DISCARDED)
        left = {n[: -len(s)] for n in self._listed() for s in suffixes if n.endswith(s)}
        for name in left:
            with self._lock(name, wait=False) as mine:
                if mine:
                    remove_tree(self.root / (name + _PARTIAL))
                    remove_tree(self.root / (name + _DISCARDED))

    def _discard_others(self, name: str) -> None:
        """Remove artifacts of the same key by other names, which are not found or not usable."""
        digest = name[name.rindex("-") :]
        for other in self._names():
            if other.endswith(digest) and other != name:
                with self._lock(other, wait=False) as mine:
                    if mine:
                        self._discard(other)

    def _discard_superseded(self, manifest: Manifest) -> tuple[str, ...]:
        """Remove artifacts of weight files that ``manifest``'s have taken the place of.

        Such are no start's any more: without this, every checkpoint saved into one folder would
        leave an artifact behind. Dummy weights of several seeds stand side by side.
        """
        removed = []
        for entry in self.entries():
            other = entry.manifest
            if (
                other is not None
                and other.model_path == manifest.model_path
                and other.key != manifest.key
                and other.key.weights
                and manifest.key.weights
                and msgspec.structs.replace(
                    other.key, weights=manifest.key.weights, config=manifest.key.config
                )
                == manifest.key
            ):
                with contextlib.suppress(OSError), self._lock(entry.name, wait=False) as mine:
                    if mine:
                        self._discard(entry.name)
                        removed.append(entry.name)
        return tuple(removed)

    def _require_safe_root(self) -> None:
        """Where all may write and rename, what is found today may be moved away tomorrow."""
        mode = os.stat(self.root).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ArtifactError(
                f"engine artifacts in {self.root} cannot be used: everybody can write the folder; "
                "`chmod o-w` it"
            )

    def require_space(self, needed: int, leave_free: float = 0.0) -> None:
        """Raise ArtifactError unless so many bytes find room, of which the share ``leave_free`` of
        the file system stays free."""
        there = next(path for path in (self.root, *self.root.absolute().parents) if path.exists())
        status = os.statvfs(there)
        free = status.f_bavail * status.f_frsize
        reserve = int(leave_free * status.f_blocks * status.f_frsize)
        if free < needed + reserve:
            also = f" and leave {size(reserve)} free" if reserve else ""
            raise ArtifactError(
                f"{self.root} has {size(free)} free, too little to hold {size(needed)}{also}; make "
                "room there, or name a folder elsewhere with --artifact-dir"
            )
