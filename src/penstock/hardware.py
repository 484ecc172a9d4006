"""The machine as this process may use it: cores, instruction sets, memory, caches.

Read from ``/proc`` and ``/sys`` alone, within what CPU affinity and control groups (v1 and v2)
leave to this process, so that a container's share is seen and not its host. What cannot be read
falls back to the least that must be there, never to a guess of more.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.cgroups import Cgroups
from penstock.gpu import GpuSearch, find_gpu
from penstock.memory_nodes import allowed_memory
from penstock.sysfs import (
    parse_number,
    read_cpu_list,
    read_number,
    read_size,
    read_text,
)
from penstock.topology import Topology


@dataclass(frozen=True)
class Cache:
    """One data or unified cache as the first usable CPU sees it."""

    level: int
    size: int  # bytes
    shared_by: int  # logical CPUs


@dataclass(frozen=True)
class Hardware:
    """The part of the machine that this process may use. Sizes are in bytes."""

    architecture: str  # "x86_64", "aarch64", ...
    cpu_model: str
    isa: frozenset[str]  # the kernel's flag names: "avx512_vnni", "amx_int8", "asimddp", ...
    cpus: tuple[int, ...]  # logical CPUs that affinity allows, ascending
    core_of: Mapping[int, int]  # of each of these CPUs: the first CPU of its core
    placement: tuple[int, ...]
    """These CPUs in the order in which threads should take them
    (:attr:`~penstock.topology.Topology.placement`)."""
    even_cpus: tuple[int, ...]
    """The CPUs, one of a core, that dense kernels should use, in that order: without those of
    slower cores, where threads with equal shares would wait for them."""
    cpu_quota: float | None  # CPUs' worth of time per period; None: no limit
    online_cpus: int  # of the machine, also where this process may not use them; 0: not told
    machine_memory: int  # of the machine, whatever control groups leave of it; 0: not told
    memory_total: int  # of the machine, of the tightest control group, or of its cpuset's nodes
    memory_available: int  # what can be allocated now without swapping or being killed
    caches: tuple[Cache, ...]  # by level
    last_level_bytes: int  # of all last-level caches that the usable CPUs have
    numa_nodes: int
    huge_pages: str | None  # "always", "madvise" or "never"; None: the kernel does not say
    gpu: GpuSearch | None = None
    """The result of looking for a GPU; None until :func:`with_gpu` has looked."""

    @property
    def physical_cores(self) -> int:
        """Cores that the usable CPUs belong to."""
        return len(set(self.core_of.values()))

    @property
    def logical_cores(self) -> int:
        return len(self.cpus)

    @property
    def compute_threads(self) -> int:
        """Threads that dense kernels should use: one for each of :attr:`even_cpus`, within the
        quota.

        A second thread on a core shares its vector units, and a thread beyond the quota is
        stopped for the rest of each period while its siblings wait at the barrier.
        """
        return min(len(self.even_cpus), self.room)

    @property
    def room(self) -> int:
        """Threads that can run at once, each with a core's time to itself; at least 1."""
        cores = self.physical_cores
        return cores if self.cpu_quota is None else max(1, int(min(cores, self.cpu_quota)))

    def cache_size(self, level: int) -> int | None:
        """Bytes of the data or unified cache of this level, None where there is none."""
        return next((c.size for c in self.caches if c.level == level), None)


def detect(root: Path = Path("/"), cpus: frozenset[int] | None = None) -> Hardware:
    """The machine under ``root`` (another root is for tests), seen with affinity ``cpus``."""
    allowed = tuple(sorted(os.sched_getaffinity(0) if cpus is None else cpus)) or (0,)
    model, flags = _cpu_info(root)
    groups = Cgroups.read(root)
    topology = Topology.read(root, allowed)
    placement = topology.placement
    machine, total, available = _memory(root, groups)
    return Hardware(
        architecture=platform.machine(),
        cpu_model=model,
        isa=flags,
        cpus=allowed,
        core_of=topology.core_of,
        placement=placement,
        even_cpus=topology.even_cpus,
        cpu_quota=groups.cpu_quota(),
        online_cpus=len(read_cpu_list(root / "sys/devices/system/cpu/online")),
        machine_memory=machine,
        memory_total=total,
        memory_available=available,
        caches=_caches(root, allowed[0]),
        last_level_bytes=sum(cache.size for cache in topology.last_level),
        numa_nodes=topology.num_nodes,
        huge_pages=_huge_pages(root),
    )


def with_gpu(hardware: Hardware) -> Hardware:
    """Return ``hardware`` with its GPU, unless it was looked for; imports torch if there is a
    driver."""
    if hardware.gpu is not None:
        return hardware
    return replace(hardware, gpu=find_gpu(hardware.memory_available))


def _cpu_info(root: Path) -> tuple[str, frozenset[str]]:
    # Emulated programs may see the file of the machine itself, of another architecture.
    features = "Features" if platform.machine().startswith(("aarch64", "arm")) else "flags"
    model, flags = "", frozenset[str]()
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("model name", "Model") and not model:
            model = " ".join(value.split())
        elif key == features and not flags:
            flags = frozenset(value.split())
    return model or platform.processor() or platform.machine() or "unknown", flags


def _caches(root: Path, cpu: int) -> tuple[Cache, ...]:
    found = []
    for index in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
        level, size = read_number(index / "level"), read_size(index / "size")
        if level is not None and size is not None and read_text(index / "type") != "Instruction":
            shared = read_cpu_list(index / "shared_cpu_list")
            found.append(Cache(level, size, max(1, len(shared))))
    return tuple(sorted(found, key=lambda c: (c.level, c.size)))


def _memory(root: Path, groups: Cgroups) -> tuple[int, int, int]:
    """The machine's memory, this process's limit, and what of it can be had now, in bytes."""
    kib = {}
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        amount = parse_number(next(iter(value.split()), ""))
        if amount is not None and amount >= 0:
            kib[key] = amount
    machine = total = kib.get("MemTotal", 0) << 10
    available = kib.get("MemAvailable", kib.get("MemFree", 0)) << 10
    if total:
        available = min(available, total)
    nodes = allowed_memory(root)
    for limit, free in [*groups.memory_limits(), *([nodes] if nodes else [])]:
        total = min(total, limit) if total else limit
        available = min(available, free) if kib else free
    return machine, total, available


def _huge_pages(root: Path) -> str | None:
    """The kernel marks the setting that holds: ``always [madvise] never``."""
    text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    known = ("always", "madvise", "never")
    return next((each for each in known if f"[{each}]" in text), None)
