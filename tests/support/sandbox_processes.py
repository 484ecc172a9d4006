"""The sandbox's processes as the kernel knows them: fork servers, keepers and workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from penstock.sandbox.process import WorkerProcess

PAGE = os.sysconf("SC_PAGE_SIZE")
_COMMAND = b"penstock.sandbox.worker"


class Found(NamedTuple):
    pid: int
    parent: int
    group: int


def found() -> list[Found]:
    """All sandbox processes of the machine that live."""
    live = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            state, parent, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if _COMMAND in command and state not in "ZX":
            live.append(Found(int(entry.name), int(parent), int(group)))
    return live


def servers(parent: int | None = None) -> set[int]:
    """Fork servers that this process, or another, has started."""
    parent = os.getpid() if parent is None else parent
    return {each.pid for each in found() if each.parent == parent}


def of(groups: set[int]) -> set[int]:
    """Processes of these fork servers, whether those live or not; and fork servers of ours."""
    return {each.pid for each in found() if each.group in groups} | servers()


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def cpu_s(pid: int) -> float:
    """Processor time that a worker has taken, in seconds."""
    worker = WorkerProcess(pid)
    try:
        return worker.cpu_s
    finally:
        worker.release()
