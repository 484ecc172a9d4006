"""Reads another process's processor time, memory and open files from the kernel."""

from __future__ import annotations

import os
import re
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Processor time of all its threads, in its own code and in the kernel for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Memory that is in RAM. Raises ProcessLookupError where the process has ended."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise ProcessLookupError(f"process {pid} has no memory: it has ended")
    return int(found[1]) / 1024


def descriptors(pid: int) -> int:
    """How many files it has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
