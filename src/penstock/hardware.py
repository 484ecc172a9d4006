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
from pathlib import Path, PurePosixPath

from penstock.gpu import GpuSearch, find_gpu

_UNLIMITED_V1 = 1 << 60
"""cgroup v1 writes "no limit" as the largest page-aligned int64; nothing real is above this."""


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
    """These CPUs in the order in which threads should take them: one of every core before the
    second of any, and within that by memory node, last-level cache and core."""
    cpu_quota: float | None  # CPUs' worth of time per period; None: no limit
    memory_total: int  # of the machine, or of the tightest control group
    memory_available: int  # what can be allocated now without swapping or being killed
    caches: tuple[Cache, ...]  # by level
    last_level_bytes: int  # of all last-level caches that the usable CPUs have
    numa_nodes: int
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
        """Threads that dense kernels should use: one per physical core, within the quota.

        A second thread on a core shares its vector units, and a thread beyond the quota is
        stopped for the rest of each period while its siblings wait at the barrier.
        """
        cores = self.physical_cores
        return cores if self.cpu_quota is None else max(1, min(cores, int(self.cpu_quota)))

    def cache_size(self, level: int) -> int | None:
        """Bytes of the data or unified cache of this level, None where there is none."""
        return next((c.size for c in self.caches if c.level == level), None)


def detect(root: Path = Path("/"), cpus: frozenset[int] | None = None) -> Hardware:
    """The machine under ``root`` (another root is for tests), seen with affinity ``cpus``."""
    allowed = tuple(sorted(os.sched_getaffinity(0) if cpus is None else cpus)) or (0,)
    model, flags = _cpu_info(root)
    groups = _Cgroups.read(root)
    core_of = {cpu: _first_of_core(root, cpu) for cpu in allowed}
    total, available = _memory(root, groups)
    return Hardware(
        architecture=platform.machine(),
        cpu_model=model,
        isa=flags,
        cpus=allowed,
        core_of=core_of,
        placement=_placement(root, core_of),
        cpu_quota=groups.cpu_quota(),
        memory_total=total,
        memory_available=available,
        caches=_caches(root, allowed[0]),
        last_level_bytes=_last_level_bytes(root, allowed),
        numa_nodes=_numa_nodes(root, allowed),
    )


def with_gpu(hardware: Hardware) -> Hardware:
    """Return ``hardware`` with its GPU; imports torch if there is a driver."""
    return replace(hardware, gpu=find_gpu(hardware.memory_available))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPUs of the kernel's list format: ``"0-3,8"`` is {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _cpu_info(root: Path) -> tuple[str, frozenset[str]]:
    model, flags = "", frozenset[str]()
    for line in (_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("model name", "Model") and not model:
            model = " ".join(value.split())
        elif key in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
    return model or platform.processor() or platform.machine() or "unknown", flags


def _first_of_core(root: Path, cpu: int) -> int:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
    return min(parse_cpu_list(siblings or ""), default=cpu)


def _placement(root: Path, core_of: Mapping[int, int]) -> tuple[int, ...]:
    seconds = set(core_of)
    for core in set(core_of.values()):
        seconds.remove(min(cpu for cpu in core_of if core_of[cpu] == core))
    node_of = {
        cpu: int(node.name.removeprefix("node"))
        for node in (root / "sys/devices/system/node").glob("node[0-9]*")
        for cpu in parse_cpu_list(_text(node / "cpulist") or "")
    }

    def key(cpu: int) -> tuple[bool, int, int, int, int]:
        return cpu in seconds, node_of.get(cpu, 0), _last_cache(root, cpu), core_of[cpu], cpu

    return tuple(sorted(core_of, key=key))


def _last_cache(root: Path, cpu: int) -> int:
    """Return the first CPU that shares the last-level cache with ``cpu``; 0 where caches are
    not reported."""
    last = (0, 0)
    for index in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index[0-9]*"):
        shared = parse_cpu_list(_text(index / "shared_cpu_list") or "")
        last = max(last, (_number(index / "level") or 0, min(shared, default=cpu)))
    return last[1]


def _caches(root: Path, cpu: int) -> tuple[Cache, ...]:
    found = []
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache"
    for index in sorted(folder.glob("index[0-9]*")):
        level, size = _number(index / "level"), _text(index / "size") or ""
        if level is None or _text(index / "type") == "Instruction" or not size[:-1].isdigit():
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1])
        if unit is None:
            continue
        shared = parse_cpu_list(_text(index / "shared_cpu_list") or str(cpu))
        found.append(Cache(level, int(size[:-1]) * unit, len(shared)))
    return tuple(sorted(found, key=lambda c: c.level))


def _last_level_bytes(root: Path, cpus: tuple[int, ...]) -> int:
    firsts = {_last_cache(root, cpu) for cpu in cpus}
    return sum(cache.size for first in firsts for cache in _caches(root, first)[-1:])


def _numa_nodes(root: Path, cpus: tuple[int, ...]) -> int:
    nodes = (root / "sys/devices/system/node").glob("node[0-9]*")
    lists = (parse_cpu_list(_text(node / "cpulist") or "") for node in nodes)
    return max(1, sum(1 for members in lists if not members.isdisjoint(cpus)))


def _memory(root: Path, groups: _Cgroups) -> tuple[int, int]:
    kib = {}
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        amount = value.split()
        if amount and amount[0].isdigit():
            kib[key] = int(amount[0])
    total = kib.get("MemTotal", 0) << 10
    available = kib.get("MemAvailable", kib.get("MemFree", 0)) << 10
    for limit, free in groups.memory_limits():
        total = min(total, limit) if total else limit
        available = min(available, free) if kib else free
    return total, available


@dataclass(frozen=True)
class _Cgroups:
    """The control-group folders that bind this process, innermost first, per controller."""

    unified: tuple[Path, ...]
    cpu_v1: tuple[Path, ...]
    memory_v1: tuple[Path, ...]

    @classmethod
    def read(cls, root: Path) -> _Cgroups:
        mount = root / "sys/fs/cgroup"
        chains: dict[str, tuple[Path, ...]] = {"unified": (), "cpu": (), "memory": ()}
        for line in (_text(root / "proc/self/cgroup") or "").splitlines():
            parts = line.split(":", 2)
            if len(parts) != 3:
                continue
            _, controllers, path = parts
            if not controllers:
                # Beside version 1, version 2 is mounted in a folder of its own.
                beside = mount / "unified"
                chains["unified"] = _chain(beside if beside.is_dir() else mount, path)
            for name in ("cpu", "memory"):
                if name in controllers.split(","):
                    # Distributions mount "cpu" alone, joined, or as a link to the joined folder.
                    mounts = (mount / m for m in (name, controllers))
                    base = next((m for m in mounts if m.is_dir()), None)
                    chains[name] = _chain(base, path) if base is not None else ()
        return cls(chains["unified"], chains["cpu"], chains["memory"])

    def cpu_quota(self) -> float | None:
        """CPUs' worth of time, the tightest of all enclosing groups."""
        quotas = []
        for group in self.unified:
            fields = (_text(group / "cpu.max") or "max").split()
            if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit():
                quotas.append(int(fields[0]) / int(fields[1]))
        for group in self.cpu_v1:
            quota = _number(group / "cpu.cfs_quota_us")
            period = _number(group / "cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                quotas.append(quota / period)
        return min(quotas, default=None)

    def memory_limits(self) -> list[tuple[int, int]]:
        """(limit, still free) of each enclosing group that has a limit.

        Page cache that nobody used lately is counted as free: the kernel drops it first.
        """
        found = []
        for group in self.unified:
            limit = _number(group / "memory.max")
            if limit is not None:
                used = _number(group / "memory.current") or 0
                idle = _stat(group / "memory.stat", "inactive_file")
                found.append((limit, max(0, limit - used + idle)))
        for group in self.memory_v1:
            limit = _number(group / "memory.limit_in_bytes")
            if limit is not None and limit < _UNLIMITED_V1:
                used = _number(group / "memory.usage_in_bytes") or 0
                idle = _stat(group / "memory.stat", "total_inactive_file")
                found.append((limit, max(0, limit - used + idle)))
        return found


def _chain(mount: Path, path: str) -> tuple[Path, ...]:
    """The group at ``path`` and its ancestors, as far as the mount shows them.

    In a container the path may name the host's hierarchy; its mount then starts at our group.
    """
    inner = PurePosixPath(path.lstrip("/"))
    steps = [mount / inner, *(mount / parent for parent in inner.parents)]
    return tuple(dict.fromkeys(step for step in steps if step.is_dir()))


def _stat(path: Path, key: str) -> int:
    for line in (_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0
