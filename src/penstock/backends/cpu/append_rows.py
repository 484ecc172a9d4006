"""Appends ops that compute each row, or each head of a row, by itself to a native executor."""

from __future__ import annotations

from typing import Final

from penstock.backends.cpu.binder import Binder
from penstock.backends.cpu.gating import gating
from penstock.plan import ops


def _features(b: Binder, op: ops.Features) -> None:
    b.native.append_features(b.buffers[op.out], op.first)


def _join(b: Binder, op: ops.Join) -> None:
    b.native.append_join([b.buffers[x] for x in op.xs], b.buffers[op.out], op.heads or 1)


def _scale_rows(b: Binder, op: ops.ScaleRows) -> None:
    x, by, out = (b.buffers[name] for name in (op.x, op.by, op.out))
    b.native.append_scale_rows(x, by, out, op.sigmoid)


def _select_rows(b: Binder, op: ops.SelectRows) -> None:
    b.native.append_select_rows(b.buffers[op.x], b.buffers[op.out], op.first)


def _argmax(b: Binder, op: ops.Argmax) -> None:
    b.native.append_argmax(b.buffers[op.x], b.buffers[op.out])


def _rms_norm(b: Binder, op: ops.RmsNorm) -> None:
    b.native.append_rms_norm(
        b.buffers[op.x], b.buffers[op.out], b.optional_weight(op.weight), op.eps
    )


def _layer_norm(b: Binder, op: ops.LayerNorm) -> None:
    weight, bias = b.optional_weight(op.weight), b.optional_weight(op.bias)
    b.native.append_layer_norm(b.buffers[op.x], b.buffers[op.out], weight, bias, op.eps)


def _scale(b: Binder, op: ops.Scale) -> None:
    b.native.append_scale(b.buffers[op.x], b.buffers[op.out], op.factor)


def _scale_by(b: Binder, op: ops.ScaleBy) -> None:
    b.native.append_scale_by(b.buffers[op.x], b.buffers[op.out], b.weight(op.weight))


def _columns(b: Binder, op: ops.Columns) -> None:
    b.native.append_columns(b.buffers[op.x], b.buffers[op.out], op.first)


def _soft_cap(b: Binder, op: ops.SoftCap) -> None:
    b.native.append_soft_cap(b.buffers[op.x], b.buffers[op.out], op.cap)


def _xielu(b: Binder, op: ops.Xielu) -> None:
    b.native.append_xielu(
        x=b.buffers[op.x],
        out=b.buffers[op.out],
        p=b.weight(op.p),
        n=b.weight(op.n),
        beta=b.weight(op.beta),
        eps=b.weight(op.eps),
    )


def _clamp(b: Binder, op: ops.Clamp) -> None:
    b.native.append_clamp(b.buffers[op.x], b.buffers[op.out], op.limit)


def _scale_by_position(b: Binder, op: ops.ScaleByPosition) -> None:
    b.native.append_scale_by_position(
        x=b.buffers[op.x],
        out=b.buffers[op.out],
        factors=b.floats(op.scale.factors(b.plan.max_positions)),
        period=op.scale.period,
        offset=op.scale.offset,
    )


def _add(b: Binder, op: ops.Add) -> None:
    x, y, out = (b.buffers[name] for name in (op.x, op.y, op.out))
    b.native.append_add_activated(x, y, out, "none")


def _head_norm(b: Binder, op: ops.HeadNorm) -> None:
    x, out = b.buffers[op.x], b.buffers[op.out]
    b.native.append_head_norm(
        x,
        out,
        op.head_dim,
        b.optional_weight(op.weight),
        op.eps,
        bias=b.optional_weight(op.bias),
        layer=op.centered,
        each_head=op.each_head,
    )


def _rope(b: Binder, op: ops.Rope) -> None:
    cos, sin = b.rope(op.rope)
    b.native.append_rope(
        x=b.buffers[op.x],
        out=b.buffers[op.out],
        head_dim=op.head_dim,
        cos=cos,
        sin=sin,
        rope_dim=b.plan.ropes[op.rope].dim,
        interleaved=b.plan.ropes[op.rope].interleaved,
    )


def _gate(b: Binder, op: ops.Gate) -> None:
    gate, up, out = (b.buffers[name] for name in (op.gate, op.up, op.out))
    b.native.append_gate(gate, up, out, *gating(op.activation))


def _activate(b: Binder, op: ops.Activate) -> None:
    b.native.append_add_activated(None, b.buffers[op.x], b.buffers[op.out], op.activation)


def _add_norm(b: Binder, op: ops.AddNorm) -> None:
    b.native.append_add_norm(
        b.buffers[op.residual],
        None if op.delta is None else b.buffers[op.delta],
        b.buffers[op.out],
        b.optional_weight(op.weight),
        op.eps,
    )


def _add_activated(b: Binder, op: ops.AddActivated) -> None:
    x, y, out = (b.buffers[name] for name in (op.x, op.y, op.out))
    b.native.append_add_activated(x, y, out, op.activation)


def _add_positions(b: Binder, op: ops.AddPositions) -> None:
    b.native.append_add_positions(
        x=b.buffers[op.x],
        out=b.buffers[op.out],
        table=b.table(op.weight),
        elem=b.plan.weight_dtype,
        rows=b.plan.weights[op.weight].shape[0],
        offset=op.offset,
    )


ROW_OPS: Final[ops.OpTable[Binder]] = ops.op_table(
    ops.handles(ops.AddPositions, _add_positions),
    ops.handles(ops.Features, _features),
    ops.handles(ops.Join, _join),
    ops.handles(ops.ScaleRows, _scale_rows),
    ops.handles(ops.SelectRows, _select_rows),
    ops.handles(ops.Argmax, _argmax),
    ops.handles(ops.RmsNorm, _rms_norm),
    ops.handles(ops.LayerNorm, _layer_norm),
    ops.handles(ops.Scale, _scale),
    ops.handles(ops.ScaleBy, _scale_by),
    ops.handles(ops.Columns, _columns),
    ops.handles(ops.SoftCap, _soft_cap),
    ops.handles(ops.Clamp, _clamp),
    ops.handles(ops.Xielu, _xielu),
    ops.handles(ops.ScaleByPosition, _scale_by_position),
    ops.handles(ops.Add, _add),
    ops.handles(ops.HeadNorm, _head_norm),
    ops.handles(ops.Rope, _rope),
    ops.handles(ops.Gate, _gate),
    ops.handles(ops.Activate, _activate),
    ops.handles(ops.AddNorm, _add_norm),
    ops.handles(ops.AddActivated, _add_activated),
)
"""These ops, and what appends each."""
