"""The guardian: a server that dies is started again on the same socket, and ends as it should."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.waiting import PATIENCE_S, until


@dataclass
class Guarded:
    """``guarded.py`` in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def lives(self) -> list[int]:
        """The process ids of the servers that there were, one after another."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def pid(self, life: int = 0) -> int:
        until(lambda: len(self.lives()) > life, PATIENCE_S, f"life {life}")
        return self.lives()[life]

    def ask(self) -> str:
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as sock:
            return sock.recv(10).decode()

    def end(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, stderr


@contextmanager
def guarded(folder: Path, name: str, restarts: int = 5) -> Iterator[Guarded]:
    log = folder / "lives"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, "-m", "support.guarded", name, str(restarts)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "GUARDED_LOG": str(log)},
    )
    with process:
        assert process.stdout is not None
        try:
            yield Guarded(process, int(process.stdout.readline()), log)
        finally:
            process.kill()


def gone(pid: int) -> bool:
    """Whether the process has ended, collected or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_server_that_dies_is_started_again_on_its_socket(
    tmp_path: Path, number: signal.Signals
) -> None:
    with guarded(tmp_path, "serves") as program:
        first = program.pid()
        assert program.ask() == "0"
        os.kill(first, number)
        assert program.ask() == "1"  # never refused: the question waits
        second = program.pid(1)
        assert second != first
        program.process.send_signal(signal.SIGTERM)
        code, stderr = program.end()
    assert code == 7
    (line,) = stderr.splitlines()
    entry = json.loads(line)
    assert entry["level"] == "error"
    assert f"(pid {first}) was ended by {number.name}" in entry["message"]
    assert "started again in 0.01 s (1 in a row)" in entry["message"]
    assert gone(second)


def test_a_server_that_leaves_without_a_word_has_died(tmp_path: Path) -> None:
    with guarded(tmp_path, "exits") as program:
        code, stderr = program.end()
    assert code == 2  # of the second life, whose own error is final
    assert "ended with exit code 0; it is started again" in stderr


def test_too_many_deaths_in_a_row_are_the_end(tmp_path: Path) -> None:
    with guarded(tmp_path, "crashes", 3) as program:
        code, stderr = program.end()
        assert len(program.lives()) == 4
    assert code == 1
    assert "error: the server died 4 times in a row" in stderr
    assert "SIGABRT" in stderr.splitlines()[-1]
    waits = [json.loads(line)["message"] for line in stderr.splitlines()[:-1]]
    assert [wait.partition("again in ")[2] for wait in waits] == [
        "0.01 s (1 in a row)",
        "0.02 s (2 in a row)",
        "0.04 s (3 in a row)",
    ]


def test_a_restart_that_dies_is_tried_again(tmp_path: Path) -> None:
    with guarded(tmp_path, "stumbles") as program:
        until(lambda: len(program.lives()) == 2, PATIENCE_S, "two that were ready")
        assert program.ask() == "2"


def test_a_start_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    with guarded(tmp_path, "refuses") as program:
        assert program.end() == (2, "")
    with guarded(tmp_path, "starts_badly") as program:
        code, stderr = program.end()
    assert code == 1
    assert "was ended by SIGSEGV before it was ready" in stderr


def test_a_signal_ends_a_server_that_still_starts(tmp_path: Path) -> None:
    with guarded(tmp_path, "loads") as program:
        pid = program.pid()
        program.process.send_signal(signal.SIGTERM)
        assert program.end() == (128 + signal.SIGTERM, "")
        assert gone(pid)


def test_a_second_signal_ends_a_server_that_does_not_heed_the_first(tmp_path: Path) -> None:
    with guarded(tmp_path, "deaf") as program:
        pid = program.pid()
        program.process.send_signal(signal.SIGTERM)
        until(lambda: program.process.poll() is None and let_go(program), PATIENCE_S, "heard")
        program.process.send_signal(signal.SIGINT)
        assert program.end() == (128 + signal.SIGINT, "")
        assert gone(pid)


def test_the_server_dies_with_its_guardian(tmp_path: Path) -> None:
    with guarded(tmp_path, "deaf") as program:
        pid = program.pid()
        program.process.kill()
        until(lambda: gone(pid), PATIENCE_S, "the server is gone")


def let_go(program: Guarded) -> bool:
    """The guardian no longer has the socket, whose server never listened."""
    try:
        inodes = [os.readlink(fd) for fd in Path(f"/proc/{program.process.pid}/fd").iterdir()]
    except FileNotFoundError:  # it closed one between the two calls
        return False
    return not any(inode.startswith("socket:") for inode in inodes)
