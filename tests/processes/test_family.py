"""Ends of processes: with their parents, and in words."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from penstock.processes.family import describe_exit, end_with_parent

PATIENCE_S = 60.0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-signal.SIGKILL, "was ended by SIGKILL"),
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
        (-63, "was ended by signal 63"),
    ],
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def test_a_child_is_killed_with_its_parent() -> None:
    program = textwrap.dedent(
        """
        import os, time
        from penstock.processes.family import end_with_parent
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            assert end_with_parent(parent)
            os.write(1, b"%d\\n" % os.getpid())
        time.sleep(600)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        handle = os.pidfd_open(child)
        parent.kill()
    ends = time.monotonic() + PATIENCE_S
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it is gone
        while state(child) != "Z":  # a zombie that whoever adopted it has not reaped
            signal.pidfd_send_signal(handle, 0)
            assert time.monotonic() < ends
            time.sleep(0.01)
    os.close(handle)


def test_a_parent_that_has_ended_is_told() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not end_with_parent(os.getpid()) else 1)  # itself is not its parent
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
