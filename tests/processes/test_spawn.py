"""The start of a module in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.processes.spawn import spawn

CHILD = """
import os, socket, sys
import penstock
fd = int(sys.argv[sys.argv.index("--fd") + 1])
with socket.socket(fileno=fd) as sock:
    told = [penstock.__file__, os.environ.get("SECRET", ""), str(os.getpgid(0) == os.getpid())]
    sock.sendall("\\n".join([*told, *sys.argv[3:]]).encode())
"""


def test_the_child_has_our_path_and_no_more_of_the_environment_than_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spawned_child.py").write_text(CHILD, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SECRET", "s")
    import penstock

    process, sock = spawn(
        "spawned_child",
        ["--more", "x"],
        stdout=subprocess.DEVNULL,
        environment={"PATH": os.environ["PATH"], "PYTHONPATH": "/nowhere"},
    )
    with sock:
        sock.settimeout(60)
        data = b""
        while piece := sock.recv(4096):
            data += piece
    assert process.wait(60) == 0
    assert data.decode().split("\n") == [penstock.__file__, "", "True", "--more", "x"]


def test_what_cannot_be_started_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    pair = socket.socketpair

    def remembered(*args: int) -> tuple[socket.socket, socket.socket]:
        made.extend(pair(*args))  # type: ignore[arg-type]
        return made[0], made[1]

    monkeypatch.setattr(socket, "socketpair", remembered)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        spawn("penstock", stdout=subprocess.DEVNULL, environment={})
    assert [sock.fileno() for sock in made] == [-1, -1]
