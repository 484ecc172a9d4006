"""Appends the ops of a plan to a native executor: ``APPENDERS`` lists those that have a kernel.

An op's function here names buffers and weights by their handles and calls one method of the
executor, whose C++ checks that they fit (``csrc/executor_append*.cpp``).
"""

from __future__ import annotations

from typing import Final

from penstock.backends.cpu.append_rows import ROW_OPS
from penstock.backends.cpu.append_states import STATE_OPS
from penstock.backends.cpu.append_turns import TURN_OPS
from penstock.backends.cpu.binder import Binder
from penstock.backends.cpu.gating import gating
from penstock.backends.cpu.ordered import GatherColumns
from penstock.plan import ops


def append(binder: Binder, op: ops.Op) -> None:
    """Append ``op``; ValueError where it has no native kernel, or its kernel cannot run it."""
    appender = APPENDERS.get(type(op))
    if appender is None:
        raise ValueError(f"op {op.kind} has no native kernel")
    appender(binder, op)


def _embed(b: Binder, op: ops.Embed) -> None:
    if op.scheme is not None:
        b.native.append_packed_embed(b.packed_table(op, op.scheme), b.buffers[op.out])
        return
    rows = b.plan.weights[op.weight].shape[0]
    b.native.append_embed(b.table(op.weight), b.plan.weight_dtype, b.buffers[op.out], rows)


def _gather_columns(b: Binder, op: GatherColumns) -> None:
    columns = b.plan.buffers[op.x].cols
    outs = [b.buffers[out] for out in op.outs]
    orders = [b.order(weight, columns) for weight in op.matrices]
    ids = None if op.ids is None else b.buffers[op.ids]
    b.native.append_gather_columns(b.buffers[op.x], outs, orders, ids)


def _linear(b: Binder, op: ops.Linear) -> None:
    matrix = b.matrix(op)
    x, out = b.buffers[op.x], b.buffers[op.out]
    b.native.append_linear(matrix, b.bias(op), x, out, *gating(op.gated))


def _route(b: Binder, op: ops.Route) -> None:
    routing = op.routing
    b.native.append_route(
        logits=b.buffers[op.logits],
        ids=b.buffers[op.ids],
        shares=b.buffers[op.shares],
        choice_bias=b.optional_weight(op.choice_bias),
        share_scale=b.optional_weight(op.share_scale),
        scores=routing.scores,
        normalize=routing.normalize,
        normalize_eps=routing.normalize_eps,
        normalize_least=routing.normalize_least,
        scale=routing.scale,
        groups=routing.groups,
        groups_chosen=routing.groups_chosen,
        top2=routing.group_score == "top2",
        jitter=routing.jitter,
    )


def _head_linear(b: Binder, op: ops.HeadLinear) -> None:
    b.native.append_head_linear(
        matrix=b.head_matrix(op), heads=op.heads, x=b.buffers[op.x], out=b.buffers[op.out]
    )


def _expert_linear(b: Binder, op: ops.ExpertLinear) -> None:
    matrix = b.experts(op)
    x, ids, out = (b.buffers[name] for name in (op.x, op.ids, op.out))
    b.native.append_expert_linear(matrix, b.expert_bias(op), x, ids, out, *gating(op.gated))


def _combine_experts(b: Binder, op: ops.CombineExperts) -> None:
    shares = None if op.shares is None else b.buffers[op.shares]
    b.native.append_combine_experts(b.buffers[op.x], shares, b.buffers[op.out])


def _attention(b: Binder, op: ops.Attention) -> None:
    b.native.append_attention(
        layer=op.layer,
        q=b.buffers[op.q],
        out=b.buffers[op.out],
        heads=op.heads,
        scale=op.scale,
        window=op.window or 0,
        chunk=op.chunk or 0,
        softcap=op.softcap,
        slopes=None if op.slopes is None else b.floats(op.slopes),
        sinks=b.optional_weight(op.sinks),
        slope_factor=op.slope_factor or 0.0,
    )


def _all_gather(b: Binder, op: ops.AllGather) -> None:
    b.native.append_all_gather(b.buffers[op.x], b.buffers[op.out], list(op.ranks))


def _gather_to_first(b: Binder, op: ops.GatherToFirst) -> None:
    out = None if op.out is None else b.buffers[op.out]
    b.native.append_gather_to_first(b.buffers[op.x], out, list(op.ranks))


def _kv_write(b: Binder, op: ops.KvWrite) -> None:
    v = None if op.v is None else b.buffers[op.v]
    b.native.append_kv_write(layer=op.layer, k=b.buffers[op.k], v=v)


def _rope_write(b: Binder, op: ops.RopeWrite) -> None:
    cos, sin = b.rope(op.rope)
    b.native.append_rope_write(
        layer=op.layer,
        qkv=b.buffers[op.qkv],
        q=b.buffers[op.q],
        heads=op.heads,
        cos=cos,
        sin=sin,
        rope_dim=b.plan.ropes[op.rope].dim,
        interleaved=b.plan.ropes[op.rope].interleaved,
        q_norm=b.optional_weight(op.q_norm),
        k_norm=b.optional_weight(op.k_norm),
        eps=op.eps,
    )


APPENDERS: Final[ops.OpTable[Binder]] = ops.op_table(
    ROW_OPS,
    STATE_OPS,
    TURN_OPS,
    ops.handles(ops.Embed, _embed),
    ops.handles(GatherColumns, _gather_columns),
    ops.handles(ops.Linear, _linear),
    ops.handles(ops.HeadLinear, _head_linear),
    ops.handles(ops.Route, _route),
    ops.handles(ops.ExpertLinear, _expert_linear),
    ops.handles(ops.CombineExperts, _combine_experts),
    ops.handles(ops.Attention, _attention),
    ops.handles(ops.AllGather, _all_gather),
    ops.handles(ops.GatherToFirst, _gather_to_first),
    ops.handles(ops.KvWrite, _kv_write),
    ops.handles(ops.RopeWrite, _rope_write),
)
