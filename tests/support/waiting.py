"""Waiting for what other processes and threads do, however slow the machine is meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 60.0


def until(condition: Callable[[], object], seconds: float, what: str) -> float:
    """Wait for ``condition``; returns how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"{what}: not after {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - began


def runs(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody has collected does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def descendants_of(parent: int) -> list[int]:
    """The processes that a process has started, then those that these have, and so on."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            pid, _, rest = stat.read_text().partition(" ")
            parents[int(pid)] = int(rest.rpartition(")")[2].split()[1])
    found, more = list[int](), [parent]
    while more := sorted(pid for pid, its in parents.items() if its in more):
        found += more
    return found
