"""Machines that are not as machines should be: what is chosen there, and what is said of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.machines import CPU, GIB, group, plain, write

from penstock.hardware import Hardware, detect
from penstock.hardware_facts import facts
from penstock.threads import choose_threads


def seen(root: Path, files: dict[str, str], cpus: range | set[int]) -> Hardware:
    return detect(write(root, files), frozenset(cpus))


def test_a_plain_machine_has_nothing_odd(tmp_path: Path) -> None:
    hardware = seen(tmp_path, plain(range(4)), range(4))
    assert facts(hardware) == ()
    assert (hardware.even_cpus, hardware.room) == ((0, 1, 2, 3), 4)


def test_hardware_threads(tmp_path: Path) -> None:
    hardware = seen(tmp_path, plain(range(8), per_core=2), range(8))
    assert hardware.even_cpus == (0, 2, 4, 6)
    assert facts(hardware) == ("8 CPUs are hardware threads of 4 cores: a core gets one thread",)


@pytest.mark.parametrize(
    ("fast", "slow", "threads"),
    [(6, 8, 6), (8, 16, 8), (2, 8, 10), (4, 4, 4), (0, 8, 8)],
)
def test_hybrid_cores_by_their_kind(tmp_path: Path, fast: int, slow: int, threads: int) -> None:
    """Two fast cores beside eight slow ones do less by themselves than all do at the pace of the
    slow."""
    cpus = range(fast + slow)
    efficient = {"sys/devices/cpu_atom/cpus": f"{fast}-{fast + slow - 1}"}
    hardware = seen(tmp_path, plain(cpus) | efficient, cpus)
    chosen = choose_threads(None, hardware)
    assert (chosen.count, chosen.cpus) == (threads, tuple(range(threads)))
    if threads < fast + slow:
        assert chosen.reason == f"the faster ones of {fast + slow} usable cores"
        assert f"{slow} of {fast + slow} cores are slower" in "".join(facts(hardware))
        everyone = choose_threads(fast + slow, hardware)
        assert everyone.cpus == tuple(cpus)
        assert f"{fast} threads would usually be faster" in everyone.notes[0]
        assert hardware.room == fast + slow  # nobody shares a core then


@pytest.mark.parametrize(
    ("capacities", "threads"),
    [
        ([1024, 1024, 1024, 1024, 400, 400, 400, 400], 4),
        ([1024, 870, 870, 870, 400, 400, 400, 400], 4),  # at the pace of the second kind
        ([1024, 1024, 1000, 1000], 4),
        ([1024, 300, 300, 300], 1),
        ([0, 0, 0, 0], 4),  # no capacities
    ],
)
def test_hybrid_cores_by_their_capacity(
    tmp_path: Path, capacities: list[int], threads: int
) -> None:
    cpus = range(len(capacities))
    told = {f"{CPU.format(cpu)}/cpu_capacity": str(capacities[cpu]) for cpu in cpus}
    assert len(seen(tmp_path, plain(cpus) | told, cpus).even_cpus) == threads


def test_slow_cores_alone_are_cores(tmp_path: Path) -> None:
    efficient = {"sys/devices/cpu_atom/cpus": "4-7"}
    hardware = seen(tmp_path, plain(range(8)) | efficient, {4, 5, 6, 7})
    assert choose_threads(None, hardware).cpus == (4, 5, 6, 7)
    assert "allows 4 of 8 CPUs, 4-7" in facts(hardware)[0]


def test_a_quota_of_one_and_a_half(tmp_path: Path) -> None:
    box = group("/box", {"cpu.max": "150000 100000"})
    hardware = seen(tmp_path, plain(range(4)) | box, range(4))
    chosen = choose_threads(None, hardware)
    assert (chosen.count, chosen.cpus, hardware.room) == (1, (), 1)
    assert chosen.reason == "a control group allows 1.5 cores' time"
    assert "allows 1.5 CPUs' time" in facts(hardware)[0]


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        ("50000", "allows 0.5 CPUs' time: even one thread is stopped"),
        ("200000", "allows 2 CPUs' time: more threads would be stopped"),
        ("250000", "allows 2.5 CPUs' time: threads are as many as always run, and what is over"),
    ],
)
def test_what_follows_of_a_quota(tmp_path: Path, quota: str, words: str) -> None:
    box = group("/box", {"cpu.max": f"{quota} 100000"})
    (fact,) = facts(seen(tmp_path, plain(range(4)) | box, range(4)))
    assert words in fact


@pytest.mark.parametrize("v1", [(), ("cpu",), ("cpu,cpuacct",)])
@pytest.mark.parametrize(
    ("quota", "period"),
    [("max", "100000"), ("-1", "100000"), ("100000", "0"), ("0", "0"), ("", ""), ("1e5", "x")],
)
def test_a_quota_that_is_none(tmp_path: Path, v1: tuple[str, ...], quota: str, period: str) -> None:
    files = {
        "cpu.max": f"{quota} {period}",
        "cpu.cfs_quota_us": quota,
        "cpu.cfs_period_us": period,
    }
    hardware = seen(tmp_path, plain(range(4)) | group("/box", files, v1=v1), range(4))
    assert hardware.cpu_quota is None
    assert hardware.compute_threads == 4


def test_a_soft_limit_of_memory_counts_as_one(tmp_path: Path) -> None:
    files = {"memory.max": str(16 * GIB), "memory.high": str(8 * GIB), "memory.current": str(GIB)}
    hardware = seen(tmp_path, plain(range(4)) | group("/box", files), range(4))
    assert (hardware.memory_total, hardware.memory_available) == (8 * GIB, 7 * GIB)
    assert facts(hardware) == ("a control group allows 8.0 GiB of 64.0 GiB: budgets are of these",)


def test_a_limit_around_what_a_container_sees(tmp_path: Path) -> None:
    files = {
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.usage_in_bytes": str(GIB),
        "memory.stat": f"cache 1\nhierarchical_memory_limit {4 * GIB}",
    }
    hardware = seen(tmp_path, plain(range(2)) | group("/", files, v1=("memory",)), range(2))
    assert (hardware.memory_total, hardware.memory_available) == (4 * GIB, 3 * GIB)


def test_a_group_outside_of_the_mount_leads_nowhere_else(tmp_path: Path) -> None:
    outside = {"proc/self/cgroup": "0::/../../..", "cpu.max": "1000 100000"}
    hardware = seen(tmp_path, plain(range(2)) | outside, range(2))
    assert hardware.cpu_quota is None


def test_memory_nodes_huge_pages_and_caches_are_said(tmp_path: Path) -> None:
    files = plain(range(4)) | {
        "sys/devices/system/node/node0/cpulist": "0-1",
        "sys/devices/system/node/node4/cpulist": "2-3",
        "sys/devices/system/node/node_of_nothing/cpulist": "0",
        "sys/devices/system/node/node7/cpulist": "",
        "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
    }
    hardware = seen(tmp_path, {n: t for n, t in files.items() if "/cache/" not in n}, range(4))
    nodes, caches, pages = facts(hardware)
    assert nodes.startswith("2 memory nodes")
    assert caches.startswith("no L2 cache is reported")
    assert pages.startswith("huge pages are off")
    assert choose_threads(None, hardware).cpus == (0, 1, 2, 3)


def test_a_node_without_memory_is_none(tmp_path: Path) -> None:
    """Its CPUs are threads' like any others, but no weights lie there."""
    files = nodes({0: "0-1", 1: "2-3"}) | {"sys/devices/system/node/has_memory": "0"}
    hardware = seen(tmp_path, plain(range(4)) | files, range(4))
    assert hardware.numa_nodes == 1
    assert facts(hardware) == ()
    assert choose_threads(None, hardware).cpus == (0, 1, 2, 3)
    write(tmp_path, {"sys/devices/system/node/has_memory": "0-1"})
    assert detect(tmp_path, frozenset(range(4))).numa_nodes == 2


def test_memory_is_that_of_the_nodes_of_the_cpuset(tmp_path: Path) -> None:
    """The file of the whole machine knows no cpuset: who relied on it would be killed."""
    files = plain(range(4)) | nodes({0: "0-1", 1: "2-3"})
    files |= {"sys/devices/system/node/has_memory": "0-1"}
    free = seen(tmp_path, files | allowed("0-1"), range(4))
    assert (free.memory_total, free.memory_available) == (64 * GIB, 32 * GIB)
    for mems, total, available in (("1", 32, 21), ("0", 32, 20), ("0-1,5", 64, 32), ("x", 64, 32)):
        hardware = seen(tmp_path, allowed(mems), range(4))
        assert (hardware.memory_total, hardware.memory_available) == (total * GIB, available * GIB)
    hardware = seen(tmp_path, allowed("1"), range(4))
    assert "allows 32.0 GiB of 64.0 GiB" in "".join(facts(hardware))
    (tmp_path / "sys/devices/system/node/node1/meminfo").unlink()
    assert detect(tmp_path, frozenset(range(4))).memory_available == 32 * GIB


def nodes(cpus: dict[int, str]) -> dict[str, str]:
    """Memory nodes of 32 GiB with these CPUs: a GiB of each is page cache out of use, and as many
    are free as its number and 19."""
    files = {}
    for node, members in cpus.items():
        folder = f"sys/devices/system/node/node{node}"
        amounts = {"MemTotal": 32, "MemFree": 19 + node, "Inactive(file)": 1}
        lines = (f"Node {node} {name}: {count << 20} kB" for name, count in amounts.items())
        files |= {f"{folder}/cpulist": members, f"{folder}/meminfo": "\n".join(lines)}
    return files


def allowed(mems: str) -> dict[str, str]:
    return {"proc/self/status": f"Name: x\nMems_allowed: 3\nMems_allowed_list: {mems}"}


def test_memory_that_is_not_reported_is_said(tmp_path: Path) -> None:
    hardware = detect(tmp_path, frozenset({0}))
    assert any(line.startswith("memory is not reported") for line in facts(hardware))


def test_many_cpus_with_gaps_and_offline_ones(tmp_path: Path) -> None:
    """512 CPUs, two on a core, in ids up to 1022; a quarter of them is offline, with folders that
    are all but empty."""
    cpus = range(0, 1024, 2)
    files = plain(cpus, per_core=2)
    online = [cpu for cpu in cpus if cpu % 8]
    files = {name: text for name, text in files.items() if "/cpu/cpu" not in name or on(name)}
    files["sys/devices/system/cpu/online"] = ",".join(map(str, online))
    start = time.process_time()
    hardware = seen(tmp_path, files, set(online))
    spent = time.process_time() - start
    assert hardware.physical_cores == 256  # every core has one that is online
    assert hardware.compute_threads == 256
    assert hardware.last_level_bytes == 32 << 20
    assert spent < 5


def on(name: str) -> bool:
    cpu = int(name.removeprefix("sys/devices/system/cpu/cpu").split("/")[0])
    return cpu % 8 != 0


GARBAGE = [
    *("", "garbage", "-1", "0", "²", "9" * 5000, "18446744073709551615", "0-4294967295"),
    *("3-1", ",,,", "1,2,x", "\0", "max", "[always", "node", "1e9", "K", "99999999999K", "0K"),
    "é" * 100,
]


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_every_file(tmp_path: Path, text: str) -> None:
    """Nothing raises, and there is always a thread on a CPU that may be used."""
    files = plain(range(4), per_core=2) | group(
        "/box", dict.fromkeys(("cpu.max", "memory.max", "memory.high", "memory.current"), "1 1")
    )
    files |= {f"{CPU.format(cpu)}/cpu_capacity": "1" for cpu in range(4)}
    files |= nodes({0: "0"}) | {"sys/devices/system/node/has_memory": "0"} | allowed("0")
    files["sys/devices/cpu_atom/cpus"] = "0"
    for name in files:
        if name != "proc/self/cgroup":
            files[name] = text
    look_at(seen(tmp_path, files, range(4)))


@pytest.mark.parametrize("name", sorted(plain(range(2))))
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """A folder in its place, which is refused as a file without permission is."""
    files = plain(range(2))
    del files[name]
    (tmp_path / name).mkdir(parents=True)
    look_at(seen(tmp_path, files, range(2)))


def test_nothing_may_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, plain(range(4)))

    def refused(*args: object, **kwargs: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refused)
    look_at(detect(tmp_path, frozenset(range(4))))


def look_at(hardware: Hardware) -> None:
    """What holds of every machine."""
    chosen = choose_threads(None, hardware)
    assert 1 <= chosen.count <= hardware.physical_cores <= len(hardware.cpus)
    assert set(chosen.cpus) <= set(hardware.cpus)
    assert sorted(hardware.placement) == list(hardware.cpus)
    assert hardware.memory_available >= 0
    assert all(cache.size > 0 and cache.shared_by > 0 for cache in hardware.caches)
    assert hardware.numa_nodes >= 1
    assert all("\n" not in line for line in facts(hardware))
