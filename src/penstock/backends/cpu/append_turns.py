"""Appends the turns around products with lattice points to a native executor."""

from __future__ import annotations

from typing import Final

from penstock.backends.cpu.binder import Binder
from penstock.backends.cpu.turned import TurnBack, TurnRows
from penstock.plan import ops
from penstock.quant.lattice_matrix import RESIDUAL_SCALES
from penstock.quant.turn import Turn


def _turn_rows(b: Binder, op: TurnRows) -> None:
    turn = Turn(b.plan.buffers[op.x].cols, op.scheme.seed, "input")
    signs, matrix = b.turn(turn)
    b.native.append_turn_rows(
        x=b.buffers[op.x],
        out=b.buffers[op.out],
        signs=signs,
        doubled=turn.doubled,
        base=turn.base,
        base_matrix=matrix,
    )


def _turn_back(b: Binder, op: TurnBack) -> None:
    turn = Turn(b.plan.buffers[op.out].cols, op.scheme.seed, "output")
    scale = b.points_scale(op.matrix)
    signs, matrix = b.turn(turn)
    b.native.append_turn_back(
        x=b.buffers[op.x],
        second=None if op.second is None else b.buffers[op.second],
        out=b.buffers[op.out],
        first=op.first,
        by=0.0 if op.second is None else float(1 / RESIDUAL_SCALES[op.scheme.bits]),
        scale=scale,
        bias=b.optional_weight(op.bias),
        signs=signs,
        doubled=turn.doubled,
        base=turn.base,
        base_matrix=matrix,
    )


TURN_OPS: Final[ops.OpTable[Binder]] = ops.op_table(
    ops.handles(TurnRows, _turn_rows),
    ops.handles(TurnBack, _turn_back),
)
