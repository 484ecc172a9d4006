"""Hardware detection over made-up /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.hardware import Cache, detect
from penstock.sysfs import parse_cpu_list

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some  CPU @ 2GHz\nflags\t\t: avx2 amx_int8\n"
    "Features\t: avx2 amx_int8\n\n"
    "processor\t: 1\nmodel name\t: Other\nflags\t\t: avx2\n",
    "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemFree: 1000 kB\nMemAvailable: {32 << 20} kB\n",
    "sys/devices/system/cpu/cpu0/cache/index0/level": "1\n",
    "sys/devices/system/cpu/cpu0/cache/index0/type": "Data\n",
    "sys/devices/system/cpu/cpu0/cache/index0/size": "48K\n",
    "sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list": "0,2\n",
    "sys/devices/system/cpu/cpu0/cache/index1/level": "1\n",
    "sys/devices/system/cpu/cpu0/cache/index1/type": "Instruction\n",
    "sys/devices/system/cpu/cpu0/cache/index1/size": "32K\n",
    "sys/devices/system/cpu/cpu0/cache/index2/level": "2\n",
    "sys/devices/system/cpu/cpu0/cache/index2/type": "Unified\n",
    "sys/devices/system/cpu/cpu0/cache/index2/size": "2M\n",
    "sys/devices/system/cpu/cpu0/cache/index2/shared_cpu_list": "0-3\n",
    "sys/devices/system/node/node0/cpulist": "0,2\n",
    "sys/devices/system/node/node1/cpulist": "1,3\n",
} | {
    f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list": f"{cpu % 2},{cpu % 2 + 2}\n"
    for cpu in range(4)
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path, MACHINE)


def test_reads_a_machine_without_limits(root: Path) -> None:
    hardware = detect(root, frozenset(range(4)))
    assert hardware.cpu_model == "Some CPU @ 2GHz"
    assert hardware.isa == {"avx2", "amx_int8"}
    assert (hardware.logical_cores, hardware.physical_cores) == (4, 2)
    assert hardware.compute_threads == 2
    assert hardware.cpu_quota is None
    assert hardware.memory_total == 64 * GIB
    assert hardware.memory_available == 32 * GIB
    assert hardware.caches == (Cache(1, 48 << 10, 2), Cache(2, 2 << 20, 4))
    assert hardware.cache_size(2) == 2 << 20
    assert hardware.cache_size(3) is None
    assert hardware.last_level_bytes == 2 << 20
    assert hardware.numa_nodes == 2


@pytest.mark.parametrize(
    ("machine", "key", "told"),
    [
        ("x86_64", "flags", True),
        ("i686", "flags", True),
        ("x86_64", "Features", False),
        ("aarch64", "Features", True),
        ("aarch64", "flags", False),
    ],
)
def test_an_emulated_cpu_has_not_what_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, key: str, told: bool
) -> None:
    """A program of another architecture may see the machine's own file."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    write(tmp_path, {"proc/cpuinfo": f"processor\t: 0\n{key}\t: some other\n"})
    assert detect(tmp_path, frozenset({0})).isa == ({"some", "other"} if told else set())


def test_affinity_limits_cores_and_nodes(root: Path) -> None:
    hardware = detect(root, frozenset({0, 2}))
    assert (hardware.logical_cores, hardware.physical_cores, hardware.numa_nodes) == (2, 1, 1)


def test_cgroup_v2_takes_the_tightest_of_all_ancestors(root: Path) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
            "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/outer/inner/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/outer/inner/memory.current": f"{5 * GIB}\n",
            "sys/fs/cgroup/outer/inner/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
            "sys/fs/cgroup/outer/memory.max": "max\n",
        },
    )
    hardware = detect(root, frozenset(range(4)))
    assert hardware.cpu_quota == 1.5
    assert hardware.compute_threads == 1
    assert hardware.memory_total == 8 * GIB
    assert hardware.memory_available == 5 * GIB


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
def test_cgroup_v1_in_a_container_whose_path_is_the_hosts(root: Path, folder: str) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n",
            f"sys/fs/cgroup/{folder}/cpu.cfs_quota_us": "300000\n",
            f"sys/fs/cgroup/{folder}/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        },
    )
    hardware = detect(root, frozenset(range(4)))
    assert hardware.cpu_quota == 3.0
    assert hardware.compute_threads == 2
    assert (hardware.memory_total, hardware.memory_available) == (4 * GIB, GIB)


def test_cgroup_v2_beside_v1_is_mounted_in_a_folder_of_its_own(root: Path) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/\n0::/box\n",
            "sys/fs/cgroup/unified/box/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    hardware = detect(root, frozenset(range(4)))
    assert hardware.cpu_quota == 0.5
    assert hardware.compute_threads == 1


def test_cgroup_v1_without_limits(root: Path) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    hardware = detect(root, frozenset({0}))
    assert hardware.cpu_quota is None
    assert hardware.memory_total == 64 * GIB


def test_nothing_readable_gives_the_least(tmp_path: Path) -> None:
    hardware = detect(tmp_path, frozenset({0, 1}))
    assert hardware.physical_cores == 2
    assert hardware.memory_available == 0
    assert hardware.caches == ()
    assert hardware.last_level_bytes == 0
    assert hardware.numa_nodes == 1
    assert hardware.cpu_model


def test_this_machine() -> None:
    hardware = detect()
    assert hardware.logical_cores == len(os.sched_getaffinity(0))
    assert 1 <= hardware.compute_threads <= hardware.physical_cores <= hardware.logical_cores
    assert 0 < hardware.memory_available <= hardware.memory_total


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-2,7") == {0, 1, 2, 7}
    assert parse_cpu_list("5") == {5}
    assert parse_cpu_list("") == frozenset()
