"""Which ops of dense models have no GPU kernel yet. Imports no torch: asked before binding."""

from __future__ import annotations

from typing import Final

from penstock.plan import ops
from penstock.plan.plan import Plan

MISSING: Final[frozenset[type[ops.Op]]] = frozenset(
    {ops.AddPositions, ops.Clamp, ops.Xielu, ops.ScaleByPosition, ops.ShortConv}
)
"""Ops of which no kernel runs any."""


def missing(plan: Plan) -> str | None:
    """Say which op of ``plan`` no kernel runs; None where kernels run all."""
    for op in plan.ops:
        if type(op) in MISSING:
            return f"no kernel runs its op {op.kind} yet"
        if isinstance(op, ops.HeadNorm) and not op.is_plain:
            return "its norm of heads is not an RMS norm by one weight, the only one with a kernel"
        if isinstance(op, ops.Attention) and op.slope_factor is not None:
            return "no kernel rounds slopes times positions yet"
        if isinstance(op, ops.Attention) and op.chunk is not None:
            return "no kernel attends within chunks yet"
    return None
