"""The cores behind logical CPUs: which CPUs share one, where it lies, how fast it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.memory_nodes import nodes_with_memory
from penstock.sysfs import read_cpu_list, read_number, read_size, read_text

_CPU: Final = "sys/devices/system/cpu/cpu{}"
_NODE: Final = re.compile(r"node([0-9]{1,9})", re.ASCII)
_EFFICIENCY: Final = 0.375
"""What an efficiency core of Intel's is taken for where the kernel gives no capacities: its vector
units are half as wide as a performance core's, at about three quarters of the clock."""
_WORTH: Final = 1.25
"""How many times as much more cores must do, slower ones among them, to be used: what they add is
an estimate, and every barrier waits for them."""


@dataclass(frozen=True)
class LastLevelCache:
    """A last-level cache: the CPUs that share it, and its bytes, 0 where they are not told."""

    cpus: frozenset[int]
    size: int


@dataclass(frozen=True)
class Topology:
    """The CPUs that a process may use, as cores, caches and memory nodes."""

    core_of: Mapping[int, int]
    """The first CPU of each CPU's core."""
    speed_of: Mapping[int, float]
    """The speed of each CPU's core, of which the fastest has 1."""
    node_of: Mapping[int, int]
    """The memory node of each CPU, of those whose node is told."""
    last_level: tuple[LastLevelCache, ...]
    without_memory: frozenset[int] = frozenset()
    """Those of these nodes that have no memory of their own."""

    @classmethod
    def read(cls, root: Path, cpus: Sequence[int]) -> Topology:
        """The part of the machine under ``root`` that has these ``cpus``.

        What the kernel does not tell is taken to be alike: every CPU is a core of its own, all are
        as fast, on one node.
        """
        node_of, having = _nodes(root, frozenset(cpus)), nodes_with_memory(root)
        return cls(
            core_of=_cores(root, cpus),
            speed_of=_speeds(root, cpus),
            node_of=node_of,
            last_level=_last_level(root, cpus),
            without_memory=frozenset(node_of.values()) - having if having else frozenset(),
        )

    @property
    def placement(self) -> tuple[int, ...]:
        """The CPUs in the order in which threads should take them: one of every core before the
        second of any, and within that by memory node, last-level cache and core."""
        firsts = set(self._firsts())
        cache_of = {cpu: min(cache.cpus) for cache in self.last_level for cpu in cache.cpus}

        def key(cpu: int) -> tuple[bool, int, int, int, int]:
            where = self.node_of.get(cpu, 0), cache_of.get(cpu, 0)
            return cpu not in firsts, *where, self.core_of[cpu], cpu

        return tuple(sorted(self.core_of, key=key))

    @property
    def even_cpus(self) -> tuple[int, ...]:
        """One CPU of each core that dense kernels should use, in the order of
        :attr:`placement`.

        Threads have equal shares of every product, so all go at the pace of the slowest: as many
        of the fastest cores are taken as do the most in this way.
        """
        firsts = self._firsts()
        speeds = sorted((self.speed_of[cpu] for cpu in firsts), reverse=True)
        slowest, most = speeds[0], speeds.count(speeds[0]) * speeds[0]
        for speed in sorted(set(speeds), reverse=True):
            together = sum(each >= speed for each in speeds) * speed
            if together >= _WORTH * most:
                slowest, most = speed, together
        chosen = {cpu for cpu in firsts if self.speed_of[cpu] >= slowest}
        return tuple(cpu for cpu in self.placement if cpu in chosen)

    @property
    def num_nodes(self) -> int:
        """Nodes that have one of the CPUs and memory, at least 1."""
        return max(1, len(set(self.node_of.values()) - self.without_memory))

    def _firsts(self) -> tuple[int, ...]:
        """The first usable CPU of each core."""
        firsts: dict[int, int] = {}
        for cpu in sorted(self.core_of):
            firsts.setdefault(self.core_of[cpu], cpu)
        return tuple(firsts.values())


def _cores(root: Path, cpus: Sequence[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    usable = frozenset(cpus)
    for cpu in cpus:
        if cpu in found:
            continue
        folder = root / _CPU.format(cpu) / "topology"
        siblings = read_cpu_list(folder / "core_cpus_list")
        siblings = siblings or read_cpu_list(folder / "thread_siblings_list")
        if cpu not in siblings:  # garbage, or nothing
            siblings = frozenset({cpu})
        for each in siblings & usable:
            found.setdefault(each, min(siblings))
    return found


def _speeds(root: Path, cpus: Sequence[int]) -> dict[int, float]:
    """Linux gives capacities on ARM, and since 6.12 on hybrid x86; before, only which cores are
    the efficient ones."""
    told = {cpu: read_number(root / _CPU.format(cpu) / "cpu_capacity") for cpu in cpus}
    capacities = {cpu: number for cpu, number in told.items() if number is not None and number > 0}
    if len(capacities) == len(cpus):
        fastest = max(capacities.values())
        return {cpu: number / fastest for cpu, number in capacities.items()}
    efficient = read_cpu_list(root / "sys/devices/cpu_atom/cpus")
    if efficient.issuperset(cpus):
        efficient = frozenset()
    return {cpu: _EFFICIENCY if cpu in efficient else 1.0 for cpu in cpus}


def _nodes(root: Path, cpus: frozenset[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    folder = root / "sys/devices/system/node"
    for node in sorted(folder.glob("node*")):
        match = _NODE.fullmatch(node.name)
        if match is not None:
            for cpu in read_cpu_list(node / "cpulist") & cpus:
                found.setdefault(cpu, int(match[1]))
    return found


def _last_level(root: Path, cpus: Sequence[int]) -> tuple[LastLevelCache, ...]:
    found: list[LastLevelCache] = []
    seen: set[int] = set()
    for cpu in cpus:
        if cpu in seen:
            continue
        cache = _last_cache(root, cpu)
        if cache is not None:
            found.append(cache)
            seen |= cache.cpus
    return tuple(found)


def _last_cache(root: Path, cpu: int) -> LastLevelCache | None:
    """The last-level cache of one CPU; None where caches are not reported."""
    folders = [
        (level, index)
        for index in (root / _CPU.format(cpu) / "cache").glob("index*")
        if (level := read_number(index / "level")) is not None
        and read_text(index / "type") != "Instruction"
    ]
    if not folders:
        return None
    _, last = max(folders)
    shared = read_cpu_list(last / "shared_cpu_list")
    cpus = shared if cpu in shared else frozenset({cpu})
    return LastLevelCache(cpus, read_size(last / "size") or 0)
