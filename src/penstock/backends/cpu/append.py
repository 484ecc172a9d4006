"""Appends the ops of a plan to a native executor: ``APPENDERS`` lists those that have a kernel.

An op's function here names buffers and weights by their handles and calls one method of the
executor, whose C++ checks that they fit (``csrc/executor_append*.cpp``).
"""

from __future__ import annotations

from typing import Final

from penstock.backends.cpu.binder import Binder
from penstock.backends.cpu.ordered import GatherColumns
from penstock.models.spec import ClampedSwiglu, Gating
from penstock.plan import ops


def append(binder: Binder, op: ops.Op) -> None:
    """Append ``op``; ValueError where it has no native kernel, or its kernel cannot run it."""
    appender = APPENDERS.get(type(op))
    if appender is None:
        raise ValueError(f"op {op.kind} has no native kernel")
    appender(binder, op)


def gating(kind: Gating | None) -> tuple[str, tuple[float, float] | None]:
    """An activation by name, and limit and alpha of a clamped one."""
    if isinstance(kind, ClampedSwiglu):
        return "silu", (kind.limit, kind.alpha)
    return kind or "none", None


def _embed(b: Binder, op: ops.Embed) -> None:
    if op.scheme is not None:
        b.native.append_block_embed(b.block_table(op, op.scheme), b.buffers[op.out])
        return
    rows = b.plan.weights[op.weight].shape[0]
    b.native.append_embed(b.table(op.weight), b.plan.weight_dtype, b.buffers[op.out], rows)


def _add_positions(b: Binder, op: ops.AddPositions) -> None:
    b.native.append_add_positions(
        x=b.buffers[op.x],
        out=b.buffers[op.out],
        table=b.table(op.weight),
        elem=b.plan.weight_dtype,
        rows=b.plan.weights[op.weight].shape[0],
        offset=op.offset,
    )


def _features(b: Binder, op: ops.Features) -> None:
    b.native.append_features(b.buffers[op.out], op.first)


def _join(b: Binder, op: ops.Join) -> None:
    b.native.append_join([b.buffers[x] for x in op.xs], b.buffers[op.out], op.heads or 1)


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


def _scale_rows(b: Binder, op: ops.ScaleRows) -> None:
    x, by, out = (b.buffers[name] for name in (op.x, op.by, op.out))
    b.native.append_scale_rows(x, by, out, op.sigmoid)


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


def _kv_write(b: Binder, op: ops.KvWrite) -> None:
    v = None if op.v is None else b.buffers[op.v]
    b.native.append_kv_write(layer=op.layer, k=b.buffers[op.k], v=v)


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
    ops.handles(ops.Embed, _embed),
    ops.handles(ops.AddPositions, _add_positions),
    ops.handles(ops.Features, _features),
    ops.handles(ops.Join, _join),
    ops.handles(GatherColumns, _gather_columns),
    ops.handles(ops.Linear, _linear),
    ops.handles(ops.HeadLinear, _head_linear),
    ops.handles(ops.Route, _route),
    ops.handles(ops.ExpertLinear, _expert_linear),
    ops.handles(ops.ScaleRows, _scale_rows),
    ops.handles(ops.CombineExperts, _combine_experts),
    ops.handles(ops.Attention, _attention),
    ops.handles(ops.StateConv, _state_conv),
    ops.handles(ops.GatedDelta, _gated_delta),
    ops.handles(ops.SelectiveScan, _selective_scan),
    ops.handles(ops.GatedNorm, _gated_norm),
    ops.handles(ops.ShortConv, _short_conv),
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
    ops.handles(ops.KvWrite, _kv_write),
    ops.handles(ops.Gate, _gate),
    ops.handles(ops.Activate, _activate),
    ops.handles(ops.AddNorm, _add_norm),
    ops.handles(ops.AddActivated, _add_activated),
    ops.handles(ops.RopeWrite, _rope_write),
)
