"""How the loading of a model goes on, as it is told to whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[str, float, int], None]
"""Callback that is told, now and then, what is being done: the phase, the part of it that is done
(0 to 1), and the bytes of the weights that it is about, or 0."""


def no_progress(phase: str, done: float, num_bytes: int) -> None:
    """The ProgressCallback of whoever does not wait."""
