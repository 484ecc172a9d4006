"""Why a process that computes has ended."""

from __future__ import annotations

import signal

from penstock.processes.family import describe_exit


def describe_compute_exit(code: int) -> str:
    """Return what an exit code means (:func:`~penstock.processes.family.describe_exit`), and what
    to look at or to change."""
    hints = {
        -signal.SIGKILL: "if nobody killed it, memory ran out: lower kv_cache_bytes or use a "
        "smaller model",
        -signal.SIGILL: "this CPU, or what emulates it, does not run all instructions that it "
        "reports: PENSTOCK_ISA names lesser kernels, such as baseline",
    }
    hint = "see its messages above" if code >= 0 else hints.get(code)
    return describe_exit(code) + (f"; {hint}" if hint else "")
