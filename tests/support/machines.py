"""Made-up trees of ``/proc`` and ``/sys``, as machines of all kinds have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

GIB = 1 << 30
CPU = "sys/devices/system/cpu/cpu{}"


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files by their paths under ``root``, and return that."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def plain(cpus: Sequence[int], *, per_core: int = 1) -> dict[str, str]:
    """A machine with everything readable, an L2 for each core and one L3 for all; neighbours in
    ``cpus`` are ``per_core`` hardware threads of one core."""
    everyone = ",".join(map(str, cpus))
    files = {
        "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB",
        "proc/cpuinfo": "model name : Some CPU\nflags : avx2",
        "sys/devices/system/cpu/online": everyone,
        "sys/devices/system/node/node0/cpulist": everyone,
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    }
    for at, cpu in enumerate(cpus):
        first = at - at % per_core
        siblings = ",".join(map(str, cpus[first : first + per_core]))
        folder = CPU.format(cpu)
        files[f"{folder}/topology/core_cpus_list"] = siblings
        for index, level, size, shared in ((2, 2, "1024K", siblings), (3, 3, "32M", everyone)):
            cache = f"{folder}/cache/index{index}"
            files[f"{cache}/level"] = str(level)
            files[f"{cache}/type"] = "Unified"
            files[f"{cache}/size"] = size
            files[f"{cache}/shared_cpu_list"] = shared
    return files


def group(path: str, files: Mapping[str, str], *, v1: Sequence[str] = ()) -> dict[str, str]:
    """A control group of this process with these files: of version 2, or of the named controllers
    of version 1."""
    if not v1:
        return {f"sys/fs/cgroup{path}/{name}": text for name, text in files.items()} | {
            "proc/self/cgroup": f"0::{path}"
        }
    lines = "\n".join(f"{i + 2}:{name}:{path}" for i, name in enumerate(v1))
    tree = {f"sys/fs/cgroup/{c}{path}/{name}": text for c in v1 for name, text in files.items()}
    return tree | {"proc/self/cgroup": lines + "\n0::/"}
