"""Measures the phases of a start, for the log and for statistics."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec


class Phase(msgspec.Struct, frozen=True, array_like=True):
    """One phase of a start and how long it took."""

    name: str
    seconds: float


class Ledger:
    """Splits the time since ``start`` (time.monotonic(), shared by processes) into phases."""

    def __init__(self, start: float) -> None:
        self._last = start
        self.phases: list[Phase] = []
        self.notes: list[str] = []
        """Lines for the user who starts the engine."""

    def mark(self, name: str, seconds: float | None = None) -> None:
        """Name the phase that ran since the last mark.

        ``seconds`` claims only that part of the stretch, so that several marks can share it.
        """
        now = self._last + seconds if seconds is not None else time.monotonic()
        self.phases.append(Phase(name, now - self._last))
        self._last = now

    def note(self, level: int, text: str) -> None:
        """Keep ``text``, whatever its level."""
        self.notes.append(text)


def process_started_at() -> float:
    """Return when the kernel created this process, on the clock of time.monotonic().

    Resolution is one kernel tick, usually 10 ms.
    """
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), starttime
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return since_boot - asleep


def describe(phases: Sequence[Phase], total: float) -> str:
    """Return a line such as ``ready in 1.9 s: python 0.2, engine imports 0.3, ...``."""
    parts = ", ".join(f"{phase.name} {phase.seconds:.2f}" for phase in phases)
    return f"ready in {total:.2f} s: {parts}"
