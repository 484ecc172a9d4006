"""Programs of the small kernels: how many rows and columns each takes, and their launch."""

from __future__ import annotations

from typing import Any, Final

import triton

from penstock.backends.cuda.kernels.runtime import INTERPRETED


def rows_at_once(compiled: int) -> int:
    """Return ``compiled`` on a GPU; interpreted, many: what takes time there is each program.

    A process has one number for each kernel, whatever the step: the order in which a compiled
    kernel sums a row may depend on it.
    """
    return 64 if INTERPRETED else compiled


_ROWS: Final = rows_at_once(1)
_BLOCK: Final = 1024
"""Columns of a program."""


def launch_rows(kernel: Any, rows: int, cols: int, *arguments: Any, **constants: Any) -> None:
    """Launch a kernel that computes ``[rows, cols]`` element by element, if there are rows: each
    program has ROWS rows and BLOCK columns, which it is told."""
    if rows == 0:
        return
    kernel[(triton.cdiv(rows, _ROWS), triton.cdiv(cols, _BLOCK))](
        *arguments,
        **constants,
        ROWS=_ROWS,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
