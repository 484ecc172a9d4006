"""Parent and child processes: ending with the parent, and describing an exit."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(parent: int) -> bool:
    """Have the kernel kill this process when the thread of ``parent`` that started it ends.

    It covers a process that never reads its socket again, which would tell the same. Returns
    whether the parent still lives: one that ended before this call is noticed by nobody else.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parents end."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def describe_exit(code: int) -> str:
    """Return what an exit code means, as ``ended with exit code 3`` or ``was ended by SIGKILL``.

    ``code`` is negative for a signal, as in Popen.returncode.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value) != 0:
        print(f"penstock: prctl({option}) failed; continuing without", file=sys.stderr)
