"""Waiting for what other processes and threads do, however slow the machine is meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0


def until(condition: Callable[[], object], seconds: float, what: str) -> float:
    """Wait for ``condition``; returns how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"{what}: not after {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - began
