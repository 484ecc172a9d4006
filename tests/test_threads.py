"""The ``threads`` option over made-up machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.hardware import Hardware, detect
from penstock.threads import choose_threads, format_count, format_cpus, parse_cpus

CPU = "sys/devices/system/cpu/cpu{}"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def machine(
    root: Path,
    cpus: int,
    *,
    cores: int | None = None,
    caches: list[str] | None = None,
    nodes: list[str] | None = None,
    quota: str | None = None,
    allowed: frozenset[int] | None = None,
) -> Hardware:
    """``cpus`` logical CPUs; CPU i is a hardware thread of core ``i % cores``, as Linux numbers."""
    cores = cores or cpus
    for cpu in range(cpus):
        siblings = ",".join(str(i) for i in range(cpu % cores, cpus, cores))
        write(root, {f"{CPU.format(cpu)}/topology/core_cpus_list": siblings})
        for group in caches or ():
            if cpu in parse_cpus(group):
                folder = f"{CPU.format(cpu)}/cache/index3"
                write(root, {f"{folder}/level": "3", f"{folder}/shared_cpu_list": group})
    for i, members in enumerate(nodes or ()):
        write(root, {f"sys/devices/system/node/node{i}/cpulist": members})
    if quota:
        write(root, {"proc/self/cgroup": "0::/box", "sys/fs/cgroup/box/cpu.max": quota})
    return detect(root, allowed or frozenset(range(cpus)))


def test_by_default_each_physical_core_gets_a_thread(tmp_path: Path) -> None:
    chosen = choose_threads(None, machine(tmp_path, 8, cores=4))
    assert (chosen.count, chosen.cpus, chosen.notes) == (4, (0, 1, 2, 3), ())
    assert chosen.reason == "4 physical cores are usable"


def test_threads_follow_nodes_then_caches_then_cores(tmp_path: Path) -> None:
    """Even CPUs on node 0, odd on node 1; each node has two last-level caches."""
    hardware = machine(
        tmp_path,
        16,
        cores=8,
        nodes=["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"],
        caches=["0,4,8,12", "2,6,10,14", "1,5,9,13", "3,7,11,15"],
    )
    assert hardware.placement[:8] == (0, 4, 2, 6, 1, 5, 3, 7)
    assert hardware.placement[8:] == (8, 12, 10, 14, 9, 13, 11, 15)
    assert choose_threads(None, hardware).cpus == (0, 4, 2, 6, 1, 5, 3, 7)
    assert choose_threads("1,0,2-3", hardware).cpus == (0, 2, 1, 3)


def test_a_core_whose_first_thread_is_not_ours_still_counts(tmp_path: Path) -> None:
    hardware = machine(tmp_path, 8, cores=4, allowed=frozenset({1, 4, 5, 6}))
    assert hardware.physical_cores == 3
    assert hardware.placement == (4, 1, 6, 5)
    assert choose_threads(None, hardware).cpus == (4, 1, 6)


def test_a_cpuset_is_seen_through_affinity(tmp_path: Path) -> None:
    chosen = choose_threads(None, machine(tmp_path, 8, allowed=frozenset({5})))
    assert (chosen.count, chosen.cpus, chosen.reason) == (1, (), "1 core is usable")


@pytest.mark.parametrize(
    ("quota", "count"), [("50000 100000", 1), ("100000 100000", 1), ("250000 100000", 2)]
)
def test_a_quota_limits_the_default(tmp_path: Path, quota: str, count: int) -> None:
    chosen = choose_threads(None, machine(tmp_path, 4, quota=quota))
    assert (chosen.count, chosen.cpus) == (count, ())
    assert "a control group allows" in chosen.reason


def test_half_a_core_is_said(tmp_path: Path) -> None:
    (note,) = choose_threads(None, machine(tmp_path, 4, quota="50000 100000")).notes
    assert "0.5 cores' time" in note
    assert "one thread" in note
    assert "\n" not in note


def test_a_quota_above_all_cores_changes_nothing(tmp_path: Path) -> None:
    chosen = choose_threads(None, machine(tmp_path, 2, quota="900000 100000"))
    assert (chosen.count, chosen.cpus) == (2, (0, 1))


@pytest.mark.parametrize("asked", [3, "3"])
def test_a_number_below_the_cores_leaves_placing_to_the_system(
    tmp_path: Path, asked: int | str
) -> None:
    chosen = choose_threads(asked, machine(tmp_path, 4))
    assert (chosen.count, chosen.cpus, chosen.notes) == (3, (), ())


def test_as_many_as_cores_are_bound(tmp_path: Path) -> None:
    assert choose_threads(4, machine(tmp_path, 8, cores=4)).cpus == (0, 1, 2, 3)


@pytest.mark.parametrize("asked", [5, 32])
def test_more_than_cores_work_unbound_with_a_note(tmp_path: Path, asked: int) -> None:
    chosen = choose_threads(asked, machine(tmp_path, 8, cores=4))
    assert (chosen.count, chosen.cpus) == (asked, ())
    assert chosen.notes == (f"{asked} threads take turns on 4 cores; 4 would be faster",)


def test_more_than_the_quota_is_noted(tmp_path: Path) -> None:
    (note,) = choose_threads(4, machine(tmp_path, 4, quota="200000 100000")).notes
    assert "2 cores' time: 4 threads are stopped" in note
    assert "2 would be faster" in note


def test_a_list_is_taken_exactly(tmp_path: Path) -> None:
    hardware = machine(tmp_path, 24)
    chosen = choose_threads("0-7, 16-23", hardware)
    assert chosen.cpus == (*range(8), *range(16, 24))
    assert chosen.count == 16
    assert choose_threads("4-4", hardware).cpus == (4,)


def test_listed_hardware_threads_of_one_core_are_noted(tmp_path: Path) -> None:
    chosen = choose_threads("0,1,4", machine(tmp_path, 8, cores=4))
    assert chosen.cpus == (0, 1, 4)
    assert "hardware threads of 2 cores" in chosen.notes[0]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (0, "at least 1, not 0"),
        (-3, "at least 1, not -3"),
        ("-3", "at least 1, not -3"),
        (17, "more than 4 for each of the 4 CPUs that this process may use; leave it out for 4"),
        ("2-5", "may not use CPU 4-5; it may use 0-3"),
        ("0,1,1", "twice"),
        ("0-2,1", "twice"),
        ("3-1", "3-1 is no range"),
        ("0-999999999", "no range"),
        ("", "not ''"),
        ("0,", "not '0,'"),
        ("0x3", "such as 0-7,16-23"),
        ("all", "such as 0-7,16-23"),
        ("--4", "not '--4'"),
        ("9" * 5000, "not '999"),
        ("9" * 5000 + "-1", "not '999"),
        ("0-" + "9" * 18, "no range"),
        ("٣", "such as 0-7,16-23"),
        ("1.5", "such as 0-7,16-23"),
        ("0--3", "such as 0-7,16-23"),
        ([0, 1], "a number or a list of CPUs as text"),
        (True, "a number or a list of CPUs as text"),
        (2.0, "a number or a list of CPUs as text"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(tmp_path: Path, asked: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_threads(asked, machine(tmp_path, 4))


@pytest.mark.parametrize("text", ["0", "0-7,16-23", "1,3,5-6"])
def test_lists_are_written_as_they_are_read(text: str) -> None:
    assert format_cpus(parse_cpus(text)) == text


def test_a_count_agrees_with_its_noun() -> None:
    assert format_count(1) == "1 thread"
    assert format_count(2) == "2 threads"
