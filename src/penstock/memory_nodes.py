"""Memory nodes: which have memory, and what those have that this process may use."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.sysfs import parse_cpu_list, parse_number, read_cpu_list, read_text

_NODES: Final = "sys/devices/system/node"
_ALLOWED: Final = "Mems_allowed_list:"


def nodes_with_memory(root: Path) -> frozenset[int]:
    """The nodes of the machine under ``root`` that have memory; none where that is not told."""
    return read_cpu_list(root / _NODES / "has_memory")


def allowed_memory(root: Path) -> tuple[int, int] | None:
    """The memory of the nodes that a cpuset leaves to this process, and what of it is free, in
    bytes; None where it may use all nodes, or which and how much is not told.

    Page cache that nobody used lately is counted as free, as that of control groups is.
    """
    nodes = nodes_with_memory(root)
    allowed = _allowed(root) & nodes
    if not allowed or allowed == nodes:
        return None
    total = free = 0
    for node in sorted(allowed):
        found = _meminfo(root / _NODES / f"node{node}/meminfo")
        if "MemTotal" not in found:
            return None
        total += found["MemTotal"]
        free += found.get("MemFree", 0) + found.get("Inactive(file)", 0)
    return total, min(free, total)


def _allowed(root: Path) -> frozenset[int]:
    for line in (read_text(root / "proc/self/status") or "").splitlines():
        if line.startswith(_ALLOWED):
            return parse_cpu_list(line.removeprefix(_ALLOWED))
    return frozenset()


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name, of lines such as ``Node 0 MemFree: 1024 kB``."""
    found: dict[str, int] = {}
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(":")
        amount = parse_number(next(iter(value.split()), ""))
        if amount is not None and amount >= 0:
            found[name.split(" ")[-1]] = amount << 10
    return found
