"""What a server on this machine holds, of made-up processes and of this one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.tune.present_server import held_memory

SOCKETS = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid timeout
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7000 1
   1: 0100007F:1F40 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 7001 1
   2: 00000000:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7002 1
"""


def process(root: Path, pid: int, parent: int, anonymous: int, inode: int | None = None) -> None:
    """A process that holds so many KiB of its own, and as many in files."""
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (a name) with) S {parent} {pid} 0")
    (folder / "status").write_text(
        f"VmRSS: {2 * anonymous} kB\nRssAnon:\t {anonymous - 4} kB\nRssFile:\t {anonymous} kB\n"
        "RssShmem:\t       4 kB\n"
    )
    if inode is not None:
        (folder / "fd/3").symlink_to(f"socket:[{inode}]")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    process(tmp_path, 10, 1, 1 << 10, 7000)  # a server, its engine, and a process of that
    process(tmp_path, 11, 10, 1 << 20)
    process(tmp_path, 12, 11, 1 << 10)
    process(tmp_path, 20, 1, 1 << 20, 7001)  # a client of it, and another server
    process(tmp_path, 21, 1, 1 << 20, 7002)
    (tmp_path / "proc/net").mkdir()
    (tmp_path / "proc/net/tcp").write_text(SOCKETS)
    return tmp_path


def test_a_server_and_all_that_it_has_started(root: Path) -> None:
    assert held_memory("127.0.0.1", 8000, root) == (1 << 30) + (2 << 20)
    assert held_memory("localhost", 8001, root) == 1 << 30


def test_nobody_listens_here(root: Path) -> None:
    assert held_memory("127.0.0.1", 8002, root) == 0
    assert held_memory("192.0.2.1", 8000, root) == 0  # an address of no machine


def test_this_process_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert held_memory("127.0.0.1", server.getsockname()[1]) > 1 << 20
