"""Rows that a program of the small kernels takes."""

from __future__ import annotations

from penstock.backends.cuda.kernels.runtime import INTERPRETED


def rows_at_once(compiled: int) -> int:
    """Return ``compiled`` on a GPU; interpreted, many: what takes time there is each program.

    A process has one number for each kernel, whatever the step: the order in which a compiled
    kernel sums a row may depend on it.
    """
    return 64 if INTERPRETED else compiled
