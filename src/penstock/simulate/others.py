"""How much of this machine others take while it is measured: other processes, and its host.

Times that were measured beside a build, or while a hypervisor gave the processor to another virtual
machine, are not what the model takes. The kernel counts both, in hundredths of a second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, interrupts, soft interrupts
_STEAL = 7


class Others(NamedTuple):
    """Processor time of others, in seconds: since some moment, or in each second."""

    processes: float
    """Time of processes that are neither this one nor its descendants."""
    host: float
    """Time in which the hypervisor let something else run though this machine had work."""

    @classmethod
    def now(cls) -> Others:
        """Read the kernel's counts; all are 0 where it does not tell them."""
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
            counts = [int(each) for each in fields]
            busy = sum(counts[place] for place in _BUSY)
            return cls((busy - _own()) / _ticks(), counts[_STEAL] / _ticks())
        except (OSError, IndexError, ValueError):
            return cls(0.0, 0.0)

    def since(self, before: Others) -> Others:
        """What has come to it since ``before``."""
        return Others(
            max(self.processes - before.processes, 0.0), max(self.host - before.host, 0.0)
        )

    def each_second(self, seconds: float) -> Others:
        """The same for each of so many seconds."""
        return Others(self.processes / max(seconds, 1e-3), self.host / max(seconds, 1e-3))


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def _own() -> int:
    """Ticks of this process and of its descendants, those that have ended included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        if not each.name.isdecimal():
            continue
        try:
            fields = (each / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(each.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    total, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children.get(pid, [])
    return total
