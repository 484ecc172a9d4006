"""What is odd about the machine as this process sees it, in words, for ``penstock explain``."""

from __future__ import annotations

from penstock.hardware import Hardware
from penstock.threads import format_cpus

_GIB = 1 << 30


def facts(hardware: Hardware) -> tuple[str, ...]:
    """A line for each property that decides defaults: what was found, and what follows of it.

    A machine that a process has to itself, with everything readable and cores of one kind, has
    none.
    """
    found = (
        _affinity(hardware),
        _hardware_threads(hardware),
        _slower_cores(hardware),
        _quota(hardware),
        _nodes(hardware),
        _memory(hardware),
        _caches(hardware),
        _huge_pages(hardware),
    )
    return tuple(line for line in found if line is not None)


def _affinity(hardware: Hardware) -> str | None:
    used, online = len(hardware.cpus), hardware.online_cpus
    if used >= online:
        return None
    return (
        f"CPU affinity or a cpuset allows {used} of {online} CPUs, {format_cpus(hardware.cpus)}: "
        "no thread runs on others"
    )


def _hardware_threads(hardware: Hardware) -> str | None:
    cores, cpus = hardware.physical_cores, hardware.logical_cores
    if cores == cpus:
        return None
    return f"{cpus} CPUs are hardware threads of {_cores(cores)}: a core gets one thread"


def _slower_cores(hardware: Hardware) -> str | None:
    slower = hardware.physical_cores - len(hardware.even_cpus)
    if slower == 0:
        return None
    return (
        f"{slower} of {hardware.physical_cores} cores are slower and left out: threads have "
        f"equal shares, and would wait there; --threads {hardware.physical_cores} takes them, too"
    )


def _quota(hardware: Hardware) -> str | None:
    quota = hardware.cpu_quota
    if quota is None or quota >= hardware.physical_cores:
        return None
    allows = f"a control group allows {quota:g} CPUs' time"
    if quota < 1:
        return f"{allows}: even one thread is stopped for part of every period"
    if quota == int(quota):
        return f"{allows}: more threads would be stopped for part of every period"
    return (
        f"{allows}: threads are as many as always run, and what is over is left to the rest of the "
        "engine"
    )


def _nodes(hardware: Hardware) -> str | None:
    if hardware.numa_nodes == 1:
        return None
    return (
        f"{hardware.numa_nodes} memory nodes: threads are numbered along them, and bound ones "
        "have the weights that they read on their own"
    )


def _memory(hardware: Hardware) -> str | None:
    if hardware.memory_total == 0:
        return (
            "memory is not reported, so none is taken to be free: --kv-cache-bytes sets the cache"
        )
    machine = hardware.machine_memory
    if machine and hardware.memory_total >= machine:
        return None
    of = f" of {machine / _GIB:.1f} GiB" if machine else ""
    return (
        f"a control group allows {hardware.memory_total / _GIB:.1f} GiB{of}: budgets are of these"
    )


def _caches(hardware: Hardware) -> str | None:
    if hardware.cache_size(2) is not None:
        return None
    return (
        "no L2 cache is reported: products are cut for what the C library says, or else for 1 MiB; "
        "only speed depends on it"
    )


def _huge_pages(hardware: Hardware) -> str | None:
    if hardware.huge_pages != "never":
        return None
    return (
        "huge pages are off (/sys/kernel/mm/transparent_hugepage/enabled is never): weights are "
        "read through small ones, which is slower; madvise turns them on for who asks"
    )


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
