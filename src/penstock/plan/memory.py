"""Memory planning: one arena for all buffers of a step, sized before anything runs.

Two buffers may share bytes when no op needs both. Buffers are placed largest first, each at the
lowest offset that is free throughout its life (greedy by size; Pisarchyk and Lee, 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.plan.ops import Buffer, BufferName
from penstock.plan.plan import Plan

ALIGNMENT = 64
"""Alignment of buffers in bytes: a cache line, and the widest vector."""


PAGE_OF_SETS = 1024
"""Rows a multiple of this many bytes apart fall into few sets of a cache, and a product that
writes a column of them evicts its own lines."""


@dataclass(frozen=True)
class MemoryPlan:
    """Byte offsets into the arena. Every buffer has the size of its greatest number of rows.

    ``strides``: bytes from row to row, a whole number of cache lines, for rows of tokens never a
    multiple of 1,024.
    """

    offsets: dict[BufferName, int]
    strides: dict[BufferName, int]
    sizes: dict[BufferName, int]
    total_bytes: int

    @property
    def unshared_bytes(self) -> int:
        """Bytes that the arena would take if no two buffers shared memory."""
        return sum(self.sizes.values())


def plan_memory(
    plan: Plan, max_tokens: int, max_logit_rows: int, max_selected_rows: int | None = None
) -> MemoryPlan:
    """Place every buffer of ``plan`` for steps of at most this many rows of each kind.

    The selected rows are at most ``max_selected_rows``, by default as many as those of logits,
    which are among them.
    """
    most = (max_tokens, max_selected_rows or max_logit_rows, max_logit_rows)
    strides = {name: _stride(buffer) for name, buffer in plan.buffers.items()}
    sizes = {
        name: -(-strides[name] * buffer.rows.count(*most) // ALIGNMENT) * ALIGNMENT
        for name, buffer in plan.buffers.items()
    }
    lives = _lives(plan)
    offsets: dict[BufferName, int] = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], lives[n])):
        first, last = lives[name]
        neighbours = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in offsets
            if lives[other][0] <= last and first <= lives[other][1]
        )
        offset = 0
        for start, end in neighbours:
            if offset + sizes[name] <= start:
                break
            offset = max(offset, end)
        offsets[name] = offset
    total = max((offsets[name] + sizes[name] for name in offsets), default=0)
    return MemoryPlan(offsets, strides, sizes, total)


def _stride(buffer: Buffer) -> int:
    if buffer.rows.base != "T":
        return buffer.row_bytes
    lines = -(-buffer.row_bytes // ALIGNMENT) * ALIGNMENT
    return lines if lines % PAGE_OF_SETS else lines + ALIGNMENT


def _lives(plan: Plan) -> dict[BufferName, tuple[int, int]]:
    """Return the first and last op that uses each buffer; results live to the end of the step."""
    lives: dict[BufferName, tuple[int, int]] = {}
    for i, op in enumerate(plan.ops):
        for name in (*op.reads, *op.writes):
            lives[name] = (lives.get(name, (i, i))[0], i)
    for name in plan.results:
        lives[name] = (lives[name][0], len(plan.ops))
    return lives
