"""Appends ops of layers that keep states, and of convolutions, to a native executor."""

from __future__ import annotations

from typing import Final

from penstock.backends.cpu.binder import Binder
from penstock.plan import ops


def _state_conv(b: Binder, op: ops.StateConv) -> None:
    b.native.append_state_conv(
        layer=op.layer,
        x=b.buffers[op.x],
        out=b.buffers[op.out],
        weight=b.transposed(op.weight),
        bias=b.optional_weight(op.bias),
        kernel=op.kernel,
        silu=op.silu,
    )


def _gated_delta(b: Binder, op: ops.GatedDelta) -> None:
    b.native.append_gated_delta(
        layer=op.layer,
        qkv=b.buffers[op.qkv],
        ba=b.buffers[op.ba],
        out=b.buffers[op.out],
        a_log=b.weight(op.a_log),
        dt_bias=b.weight(op.dt_bias),
        key_heads=op.key_heads,
        tiled=op.tiled,
    )


def _selective_scan(b: Binder, op: ops.SelectiveScan) -> None:
    b.native.append_selective_scan(
        layer=op.layer,
        xbc=b.buffers[op.xbc],
        dt=b.buffers[op.dt],
        out=b.buffers[op.out],
        a_log=b.weight(op.a_log),
        dt_bias=b.weight(op.dt_bias),
        d=b.weight(op.d),
        groups=op.groups,
        dt_limits=op.dt_limits,
    )


def _gated_norm(b: Binder, op: ops.GatedNorm) -> None:
    b.native.append_gated_norm(
        x=b.buffers[op.x],
        gate=b.buffers[op.gate],
        out=b.buffers[op.out],
        weight=b.weight(op.weight),
        eps=op.eps,
        size=op.size,
        gate_first=op.gate_first,
        each_part=op.each_part,
    )


def _short_conv(b: Binder, op: ops.ShortConv) -> None:
    b.native.append_short_conv(
        layer=op.layer,
        x=b.buffers[op.x],
        out=b.buffers[op.out],
        taps=b.transposed(op.weight),
        bias=b.optional_weight(op.bias),
        kernel=op.kernel,
    )


STATE_OPS: Final[ops.OpTable[Binder]] = ops.op_table(
    ops.handles(ops.StateConv, _state_conv),
    ops.handles(ops.GatedDelta, _gated_delta),
    ops.handles(ops.SelectiveScan, _selective_scan),
    ops.handles(ops.GatedNorm, _gated_norm),
    ops.handles(ops.ShortConv, _short_conv),
)
"""These ops, and what appends each."""
