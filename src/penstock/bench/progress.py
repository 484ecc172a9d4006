"""How a benchmark goes on: for whoever waits for it, and may stop it."""

from __future__ import annotations

from typing import Protocol


class Stopped(KeyboardInterrupt):
    """Whoever waits has asked the benchmark to end before its work is done."""


class Progress(Protocol):
    """Is told what a benchmark does. Raising from :meth:`advance` is the one way to stop it."""

    def load(self, phase: str, done: float, num_bytes: int) -> None:
        """Take note of how loading goes on: a
        :data:`~penstock.interface.loading.ProgressCallback`."""

    def begin(self, run: str, total: int, unit: str = "tokens") -> None:
        """Take note that ``run`` begins, which has ``total`` of the unit to do."""

    def advance(self, count: int) -> None:
        """Take note that so many more are done. Raises Stopped."""


class Unseen:
    """The Progress of a benchmark that nobody waits for."""

    def load(self, phase: str, done: float, num_bytes: int) -> None:
        """Nothing is shown."""

    def begin(self, run: str, total: int, unit: str = "tokens") -> None:
        """Nothing is shown."""

    def advance(self, count: int) -> None:
        """Nothing stops it."""
