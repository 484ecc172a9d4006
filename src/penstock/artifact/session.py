"""The use of the artifact store by one start: takes a matching artifact, or keeps a new one."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, Literal

from penstock.artifact.digests import DigestFile
from penstock.artifact.files import size
from penstock.artifact.format import Artifact, BuiltLengths
from penstock.artifact.key import ArtifactKey, ArtifactSource
from penstock.artifact.store import KEEP_FREE, ArtifactStore, PendingArtifact
from penstock.artifact.tuned import decode_tunings
from penstock.backends.registry import backend
from penstock.errors import ArtifactError, ModelError, WeightError
from penstock.interface.tuning import Tunable, Tuning
from penstock.interface.weights import PackedRegions
from penstock.plan.plan import Plan
from penstock.resolved_config import ResolvedConfig
from penstock.weights.model_files import ModelFiles

Keeping = Literal["never", "worthwhile", "always"]

Note = Callable[[int, str], None]
"""Callback for one line of text, with its level as in the logging module. Lines about taking or
freeing disk space are warnings, so that a program that shows only warnings reports them."""

WORTHWHILE_S: Final = 0.5
"""Packing time in seconds below which weights are packed again at each start: loading an artifact
would save nothing noticeable."""


class ArtifactSession:
    """One engine start's use of the artifact store: loads, tunes and writes its own artifact.

    Made by :meth:`of`. Where artifacts are off or the backend packs nothing, every method does
    nothing."""

    def __init__(
        self,
        config: ResolvedConfig,
        plan: Plan,
        note: Note,
        source: ArtifactSource | None,
        rank: int = 0,
        stage: int = 0,
    ) -> None:
        self._config = config
        self._plan = plan
        self._note = note
        self._source = source
        self._rank, self._stage = rank, stage
        root = Path(config.artifact_dir or ".")
        self._store = ArtifactStore(root)
        self._digests = DigestFile(root)
        self._key: ArtifactKey | None = None
        self._damaged = False
        if source is not None and not source.conclusive:
            self._identify()

    @classmethod
    def of(
        cls,
        config: ResolvedConfig,
        plan: Plan,
        note: Note,
        opened: ModelFiles | None = None,
        rank: int = 0,
        stage: int = 0,
    ) -> ArtifactSession:
        """``opened`` is the model, where its files were opened before, and ``plan`` that of
        ``rank``, where several share it, and of ``stage``, where its layers are divided. Raises
        ModelError, WeightError or ConfigError, as loading the model would."""
        form = backend(config.backend).packing() if config.artifact_dir is not None else None
        source = None
        if form is not None:
            source = ArtifactSource.of(config, plan, form, opened, rank, stage)
        return cls(config, plan, note, source, rank, stage)

    @contextlib.contextmanager
    def take(
        self, restored: Callable[[float], None] = lambda part: None
    ) -> Iterator[Artifact | None]:
        """The artifact that fits, open within, or None.

        ``restored`` is called with the part of its weights that is restored, from 0 to 1.
        """
        artifact = None
        if self._source is not None:
            try:
                # Weights are hashed where there is something that they may be found to be.
                if not self._store.empty:
                    artifact = self._store.find(self._identify(), restored)
            except ArtifactError as error:
                self.is_damaged(error)
        try:
            yield artifact
        finally:
            if artifact is not None:
                artifact.close()

    def _identify(self) -> ArtifactKey:
        """The key, for which the weights are hashed unless their digests are remembered."""
        assert self._source is not None
        if self._key is None:
            self._key = self._source.identified(self._digests)
            self._digests.save()
        return self._key

    def require_room(self) -> None:
        """Raise ArtifactError where what will be packed cannot be kept for lack of room, before
        it is packed. Panels that are not full take a little more than is known here."""
        if self._source is None:
            return
        with contextlib.suppress(OSError):  # a folder that cannot be looked at: writing says so
            self._store.require_space(self._config.weight_bytes)

    def tunings(self) -> tuple[Tuning, ...]:
        """Return all tunings that the matching artifact holds; none if there is no such
        artifact."""
        try:
            with self.take() as artifact:
                return () if artifact is None else decode_tunings(artifact.manifest.tuned)
        except ArtifactError:
            return ()

    def built_lengths(self) -> tuple[str, BuiltLengths] | None:
        """The name of the matching artifact, and the lengths that it was built for; None where
        there is none, or it was built for any."""
        try:
            if self._source is None or not self._store.any_lengths:
                return None  # nothing is hashed
            with self.take() as artifact:
                if artifact is None or artifact.manifest.lengths is None:
                    return None
                return artifact.path.name, artifact.manifest.lengths
        except ArtifactError:
            return None

    def set_lengths(self, artifact: Artifact, lengths: BuiltLengths | None) -> None:
        """Say what lengths the artifact that was taken is built for. Raises ArtifactError."""
        if artifact.manifest.lengths == lengths:
            return
        self._store.set_lengths(artifact.path.name, lengths)
        self._note(logging.INFO, f"built for {lengths or 'any lengths'}")

    def is_restored(self, artifact: Artifact) -> None:
        """Note that ``artifact`` was restored into the executor and every checksum was right."""
        self._note(logging.INFO, f"restored {size(artifact.manifest.bytes)} from {artifact.path}")

    def is_damaged(self, error: ArtifactError) -> None:
        """Note that the artifact that was taken, or would have been, cannot be used because of
        ``error``."""
        self._damaged = True
        self._note(logging.WARNING, f"{error}; the weights are packed again")

    def tune(self, artifact: Artifact, tunable: Tunable) -> bool:
        """Tune as the artifact says; False if it says nothing for these circumstances."""
        try:
            tunings = decode_tunings(artifact.manifest.tuned)
        except ArtifactError as error:
            self._note(logging.WARNING, f"{artifact.path}: {error}")
            return False
        for tuning in tunings:
            if tuning.circumstances == tunable.circumstances:
                try:
                    tunable.apply(tuning)
                except ValueError as error:
                    self._note(
                        logging.WARNING,
                        f"what {artifact.path} says of tuning cannot be used: {error}",
                    )
                    return False
                self._note(logging.INFO, f"tuned {tuning.summary()}, as kept")
                return True
        if tunings:
            others = "; ".join(str(tuning.circumstances) for tuning in tunings)
            self._note(
                logging.INFO,
                f"{artifact.path} was tuned for {others}, not for {tunable.circumstances}",
            )
        return False

    def takes_tuning(self, artifact: Artifact) -> bool:
        """Whether what is measured can be kept with the artifact; it is a note if not."""
        if os.access(artifact.path, os.W_OK):
            return True
        self._note(logging.INFO, f"not tuned, since {artifact.path} cannot be written")
        return False

    def add_tuning(self, artifact: Artifact, tuning: Tuning) -> None:
        """Keep what was measured with the artifact that was taken."""
        self._say_tuned(tuning)
        try:
            self._store.add_tuning(artifact.path.name, tuning)
        except ArtifactError as error:
            self._note(logging.WARNING, f"what was measured is not kept: {error}")

    def _say_tuned(self, tuning: Tuning) -> None:
        self._note(logging.INFO, f"tuned {tuning.summary()}")

    def keep(
        self,
        packed: PackedRegions | None,
        seconds: float,
        keeping: Keeping,
        tune: Callable[[], Tuning | None] = lambda: None,
        lengths: BuiltLengths | None = None,
    ) -> bool:
        """Write what took ``seconds`` to pack, as ``keeping`` has it; whether it was tried.

        ``tune`` is called before, if it is tried, and what it returns is kept too, as are the
        ``lengths`` that the engine is built for. Raises ArtifactError where it is ``always`` to be
        kept, and is not.
        """
        always = keeping == "always"
        if self._source is None or packed is None:
            if always:
                raise ArtifactError(
                    f"there is nothing to keep: the {self._config.backend} backend packs no "
                    "weights, or artifacts are turned off"
                )
            return False
        if keeping == "never" or (not always and seconds < WORTHWHILE_S and not self._damaged):
            return False
        tuning = tune()
        if tuning is not None:
            self._say_tuned(tuning)
        try:
            self._write(self._source, packed, tuning, always, lengths)
        except ArtifactError as error:
            if always:
                raise
            self._note(logging.WARNING, f"no engine artifact is kept: {error}")
        return True

    def _write(
        self,
        source: ArtifactSource,
        packed: PackedRegions,
        tuning: Tuning | None,
        always: bool,
        lengths: BuiltLengths | None,
    ) -> None:
        key = self._unchanged(source)
        path = os.path.abspath(self._config.model_path)
        tunings = () if tuning is None else (tuning,)
        pending = PendingArtifact(key, model_name(path), path, tunings, lengths)
        if not self._damaged and (nearest := self._store.nearest(pending)):
            self._note(logging.INFO, f"of this model's other engine artifacts, {nearest}")
        start = time.monotonic()
        keep = partial(
            self._store.keep,
            pending,
            packed,
            leave_free=0.0 if always else KEEP_FREE,
            damaged=self._damaged,
        )
        kept = keep()
        if kept is None and always:
            self._note(logging.INFO, "another process is writing this artifact: waiting for it")
            kept = keep(wait=True)
        if kept is None:
            raise ArtifactError("another process is writing it")
        took = time.monotonic() - start
        self._digests.save()  # into a folder that is there by now
        if kept.written:
            self._note(logging.WARNING, f"wrote {size(kept.bytes)} to {kept.path} in {took:.1f} s")
        else:
            self._note(logging.INFO, f"another process has written {kept.path}")
            if always:
                self._store.set_lengths(kept.path.name, lengths)
        for name in kept.replaced:
            self._note(logging.WARNING, f"removed {name}, of weights that are no longer there")

    def _unchanged(self, before: ArtifactSource) -> ArtifactKey:
        """The key of what was packed, which may be neither of the files before nor of those now.

        Files that had just been changed when the start began were hashed then, as their stamps do
        not tell whether they were changed again. They are hashed a second time.
        """
        form = backend(self._config.backend).packing()
        try:
            if form is not None:
                now = ArtifactSource.of(
                    self._config, self._plan, form, rank=self._rank, stage=self._stage
                )
                if now == before:
                    key = self._identify()
                    if before.conclusive or now.identified(self._digests) == key:
                        return key
        except (ModelError, WeightError):
            pass
        raise ArtifactError("the checkpoint has changed while it was read")


def model_name(model_path: str) -> str:
    """A short name for the model in this absolute path: its hub id, if the hub's cache holds it."""
    path = Path(model_path)
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--")
    return path.name
