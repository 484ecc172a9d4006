"""What ranks exchange in a step."""

from __future__ import annotations

from penstock.plan.ops import AllGather, GatherToFirst
from penstock.plan.plan import Plan


def slot_bytes(plan: Plan, max_tokens: int, max_selected_rows: int) -> int:
    """Return the most bytes that any rank has to give in one gather of one rank's ``plan``, in
    steps of so many tokens and selected rows: the same for the plans of all ranks."""
    most = 0
    for op in plan.ops:
        if isinstance(op, AllGather | GatherToFirst):
            own = plan.buffers[op.x]
            rows = own.rows.count(max_tokens, max_selected_rows, max_selected_rows)
            widest = max(end - first for first, end in op.ranks)
            most = max(most, rows * widest * (own.row_bytes // own.cols))
    return most
