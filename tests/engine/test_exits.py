"""What is said of a process that computes, by how it ended."""

from __future__ import annotations

import signal

import pytest

from penstock.engine.exits import describe_compute_exit


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with exit code 3; see its messages above"),
        (-signal.SIGKILL, "was ended by SIGKILL; if nobody killed it, memory ran out: lower "),
        (-signal.SIGILL, "was ended by SIGILL; this CPU, or what emulates it, does not run all "),
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
    ],
)
def test_what_is_to_be_done_about_an_exit(code: int, words: str) -> None:
    assert describe_compute_exit(code).startswith(words)
    assert ("PENSTOCK_ISA" in describe_compute_exit(code)) == (code == -signal.SIGILL)
