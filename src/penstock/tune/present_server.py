"""The memory of a server on this machine, which its successor will have."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LISTENS: Final = "0A"
"""The state of a listening socket in the kernel's tables."""
_HELD: Final = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
"""What files hold of a process's memory can be had at any time; the rest when it ends."""


def held_memory(host: str, port: int, root: Path = Path("/")) -> int:
    """Bytes of memory that are free when the server that listens there has ended: those of its
    processes and of all that they have started.

    0 where the address is another machine's, where nothing listens, and where its processes are
    another user's. ``root``: of the machine; another one is for tests.
    """
    if not _is_here(host):
        return 0
    sockets = {
        f"socket:[{each}]" for kind in ("tcp", "tcp6") for each in _listening(root, kind, port)
    }
    processes = {pid for pid in _processes(root) if sockets & set(_open_files(root, pid))}
    return sum(_held(root, pid) for pid in _with_children(root, processes)) if sockets else 0


def _is_here(host: str) -> bool:
    """Whether an address of that name is this machine's: then a socket can have it."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(address)
        except OSError:
            continue
        return True
    return False


def _listening(root: Path, kind: str, port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on a port."""
    for line in _text(root / "proc/net" / kind).splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
            yield fields[9]


def _processes(root: Path) -> Iterator[int]:
    return (int(each.name) for each in (root / "proc").iterdir() if each.name.isdecimal())


def _open_files(root: Path, pid: int) -> Iterator[str]:
    try:
        for each in (root / f"proc/{pid}/fd").iterdir():
            yield os.readlink(each)
    except OSError:  # it has ended, or is another user's
        return


def _with_children(root: Path, processes: set[int]) -> set[int]:
    parents = {pid: _parent(root, pid) for pid in _processes(root)}
    found = set(processes)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _parent(root: Path, pid: int) -> int:
    fields = _text(root / f"proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def _held(root: Path, pid: int) -> int:
    return sum(int(kib) for kib in _HELD.findall(_text(root / f"proc/{pid}/status"))) << 10


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
