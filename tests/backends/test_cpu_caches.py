"""The second-level cache that products are cut for, as made-up machines state it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.machines import CPU, plain, write

KIB, MIB = 1 << 10, 1 << 20


def share(module: Any, root: Path, files: dict[str, str], cpus: Sequence[int]) -> int:
    folder = write(root, files) / "sys/devices/system/cpu"
    found: int = module.second_level_share(str(folder), list(cpus))
    return found


def second_level(cpu: int, size: str, shared: str) -> dict[str, str]:
    """Files that give ``cpu`` another second level than :func:`plain` does."""
    cache = f"{CPU.format(cpu)}/cache/index2"
    return {f"{cache}/size": size, f"{cache}/shared_cpu_list": shared}


def test_a_core_has_its_own(one_module: Any, tmp_path: Path) -> None:
    assert share(one_module, tmp_path, plain(range(4)), range(4)) == MIB


def test_hardware_threads_share_their_core_and_no_cache(one_module: Any, tmp_path: Path) -> None:
    assert share(one_module, tmp_path, plain(range(8), per_core=2), range(8)) == MIB
    # Older kernels have another name for a core's threads.
    for cpu in range(8):
        topology = tmp_path / CPU.format(cpu) / "topology"
        (topology / "core_cpus_list").rename(topology / "thread_siblings_list")
    assert share(one_module, tmp_path, {}, range(8)) == MIB


@pytest.mark.parametrize(
    ("size", "shared", "expected"),
    [
        ("2048K", "0-3", 512 * KIB),
        ("2M", "0,1,2-3", 512 * KIB),
        ("256K", "0-3", 128 * KIB),  # the least that kernels are cut for
        ("1024K", "0-63", MIB),  # as hypervisors say: no machine's 64 cores share one
        ("64M", "0", 64 * MIB),
        ("512K", "", 512 * KIB),
        ("512K", "0-", 512 * KIB),
        ("512K", "3-0", 512 * KIB),
        ("512K", "0-4294967295", 512 * KIB),
    ],
)
def test_cores_that_share_one_have_a_part_of_it(
    one_module: Any, tmp_path: Path, size: str, shared: str, expected: int
) -> None:
    files = plain(range(4))
    for cpu in range(4):
        files |= second_level(cpu, size, shared)
    assert share(one_module, tmp_path, files, range(4)) == expected


def test_of_hybrid_cores_the_fast_ones_count(one_module: Any, tmp_path: Path) -> None:
    """Two cores with 2 MiB each beside four that share as much; and where a process may run on the
    slow ones alone, these."""
    files = plain(range(6))
    for cpu in range(6):
        files |= second_level(cpu, "2048K", str(cpu) if cpu < 2 else "2-5")
    assert share(one_module, tmp_path, files, range(6)) == 2 * MIB
    assert share(one_module, tmp_path, {}, range(2, 6)) == 512 * KIB


@pytest.mark.parametrize(
    "size",
    ["0K", "64K", "65M", "1T", "1024G", "9999999999999999999999K", "-1024K", "1024", "K", ""],
)
def test_what_no_second_level_can_be_counts_as_nothing(
    one_module: Any, tmp_path: Path, size: str
) -> None:
    assert share(one_module, tmp_path, plain([0]) | second_level(0, size, "0"), [0]) == 0


def test_where_nothing_can_be_read_there_is_nothing(one_module: Any, tmp_path: Path) -> None:
    assert share(one_module, tmp_path, {}, [0, 1]) == 0
    assert share(one_module, tmp_path, plain([0]), []) == 0
    assert share(one_module, tmp_path, {}, [7]) == 0
    files = {f"{CPU.format(0)}/cache/index2/type": "Instruction"}
    assert share(one_module, tmp_path, files, [0]) == 0


def test_this_machines_is_one_that_can_be(one_module: Any) -> None:
    assert 128 * KIB <= one_module.second_level_cache() <= 64 * MIB
