"""The files and batches of a server: where they are kept, and what runs them."""

from __future__ import annotations

from pathlib import Path

from penstock.server.openai.batches.runner import Asker, BatchRunner
from penstock.server.openai.batches.store import BatchStore


class Batches:
    """A store and, once there is somebody to ask, a runner of its batches; or neither, where a
    server has no folder for them."""

    def __init__(self, store: BatchStore | None = None) -> None:
        self.store = store
        self.runner: BatchRunner | None = None

    @classmethod
    def open(cls, folder: Path | None) -> Batches:
        """Those of a folder. Raises ConfigError for one that cannot be used."""
        return cls(None if folder is None else BatchStore(folder))

    def start(self, asker: Asker, at_once: int) -> None:
        """Go on with what is kept, ``at_once`` requests at a time."""
        if self.store is not None:
            self.runner = BatchRunner(self.store, asker, at_once)
            self.runner.start()

    async def aclose(self) -> None:
        """Stop where they are, and leave the folder to the next server. Safe to repeat."""
        runner, store, self.runner, self.store = self.runner, self.store, None, None
        if runner is not None:
            await runner.aclose()
        if store is not None:
            store.close()
