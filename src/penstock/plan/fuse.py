"""Fusion: computes the same with fewer passes over memory, about eight ops a layer.

Each pass is a function from ops to ops that recognises one run of neighbours, as lowering emits
them, and puts one op in its place; a run that does not match is left as it is. Buffers that no op
mentions any more are dropped at the end.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.plan.ops import (
    Activate,
    Add,
    AddActivated,
    AddNorm,
    Buffer,
    BufferName,
    Gate,
    HeadNorm,
    KvWrite,
    Linear,
    Op,
    RmsNorm,
    Rope,
    RopeWrite,
    SelectRows,
)
from penstock.plan.plan import Plan

Ops = list[Op]
Buffers = dict[BufferName, Buffer]


def fuse(plan: Plan) -> Plan:
    """Return the plan that fast backends bind; results equal the primitive plan's up to
    rounding."""
    buffers = dict(plan.buffers)
    ops, renamed = _narrow_last_layer(list(plan.ops), buffers)
    for rewrite in (_join_qkv, _gate_in_epilogue, _add_into_norm, _activate_and_add):
        ops = rewrite(ops, buffers)
    mentioned = {name for op in ops for name in (*op.reads, *op.writes)}
    kept = {name: buffer for name, buffer in buffers.items() if name in mentioned}
    hidden = None if plan.hidden is None else renamed.get(plan.hidden, plan.hidden)
    return replace(plan, ops=tuple(ops), buffers=kept, hidden=hidden)


def _narrow_last_layer(ops: Ops, buffers: Buffers) -> tuple[Ops, dict[BufferName, BufferName]]:
    """Select the wanted rows right after the last op that mixes tokens, not after the last layer.

    After it every op works row by row, so a prefill chunk of a request that generates skips the
    last layer's output projection and MLP for all rows but one. Also returns the new names of the
    buffers after that op. A model whose rows are independent of each other is left as it is, and
    so is a stage of a pipeline that selects none.
    """
    mixing = max((i for i, op in enumerate(ops) if op.mixes), default=None)
    selects = [i for i, op in enumerate(ops) if isinstance(op, SelectRows)]
    if mixing is None or not selects:
        return ops, {}
    *taps, select = selects
    mixing = max(
        [mixing, *taps]
    )  # a tap selects of all rows: those of layers that mix nothing, too
    selected = ops[select]
    assert isinstance(selected, SelectRows)
    region = ops[mixing + 1 : select]
    written: set[BufferName] = set()
    entering: list[BufferName] = []
    for op in region:
        entering += [r for r in op.reads if r not in written and r not in entering]
        written.update(op.writes)
    renamed = {name: f"{name}.selected" for name in (*entering, *sorted(written))}
    renamed[selected.out] = renamed[selected.x]
    for name, new in renamed.items():
        if name != selected.out:
            rows = replace(buffers[name].rows, base="S")
            buffers[new] = replace(buffers[name], name=new, rows=rows)
    first: Ops = [SelectRows(name, renamed[name]) for name in entering]
    tail = [op.renamed(renamed) for op in (*region, *ops[select + 1 :])]
    return [*ops[: mixing + 1], *first, *tail], renamed


def _join_qkv(ops: Ops, buffers: Buffers) -> Ops:
    """Join three products of one input; fuse norm, rotation and cache write into one pass."""
    fused: Ops = []
    i = 0
    while i < len(ops):
        run = _match_qkv(ops, i)
        if run is None:
            fused.append(ops[i])
            i += 1
            continue
        (q, k, v), norms, (rope_q, _), write = run
        joined = f"{q.out.removesuffix('.q')}.qkv"
        parts = (*q.parts, *k.parts, *v.parts)
        buffers[joined] = replace(buffers[q.out], name=joined, cols=sum(p.n for p in parts))
        fused.append(replace(q, out=joined, parts=parts))
        fused.append(
            RopeWrite(
                layer=write.layer,
                qkv=joined,
                q=rope_q.out,
                heads=q.n // write.head_dim,
                kv_heads=write.kv_heads,
                head_dim=write.head_dim,
                rope=rope_q.rope,
                q_norm=norms[0].weight if norms else None,
                k_norm=norms[1].weight if norms else None,
                eps=norms[0].eps if norms else 0.0,
            )
        )
        i += 6 + len(norms)
    return fused


def heads_apart(joined: Linear, op: RopeWrite, buffers: Buffers) -> Ops:
    """Return what :func:`_join_qkv` makes ``joined`` and ``op`` of, so that rotated keys are a
    buffer, ``"... rotated"``; add the buffers that are missing."""
    q, k, v = (f"{op.qkv}.{part.weight}" for part in joined.parts)
    rotated = f"{k} rotated"
    for name, part in zip((q, k, v), joined.parts, strict=True):
        buffers[name] = replace(buffers[op.qkv], name=name, cols=part.n)
    buffers[rotated] = replace(buffers[k], name=rotated)
    products = [
        replace(joined, out=name, parts=(part,))
        for name, part in zip((q, k, v), joined.parts, strict=True)
    ]
    norms = [
        HeadNorm(x, x, op.head_dim, weight, op.eps)
        for x, weight in ((q, op.q_norm), (k, op.k_norm))
        if weight is not None
    ]
    ropes = [Rope(q, op.q, op.head_dim, op.rope), Rope(k, rotated, op.head_dim, op.rope)]
    write = KvWrite(op.layer, rotated, v, op.kv_heads, op.head_dim)
    return [*products, *norms, *ropes, write]


def _match_qkv(
    ops: Ops, i: int
) -> tuple[tuple[Linear, Linear, Linear], list[HeadNorm], tuple[Rope, Rope], KvWrite] | None:
    norms = [op for op in ops[i + 3 : i + 5] if isinstance(op, HeadNorm)]
    run = [op for op in ops[i : i + 6 + len(norms)] if not isinstance(op, HeadNorm)]
    if len(run) != 6 or len(norms) == 1:
        return None
    q, k, v, rope_q, rope_k, write = run
    if not (isinstance(q, Linear) and isinstance(k, Linear) and isinstance(v, Linear)):
        return None
    if not (isinstance(rope_q, Rope) and isinstance(rope_k, Rope) and isinstance(write, KvWrite)):
        return None
    chained = (
        q.x == k.x == v.x
        and q.scheme == k.scheme == v.scheme
        and (rope_q.x, rope_k.x) == (q.out, k.out)
        and (write.k, write.v) == (rope_k.out, v.out)
        and rope_q.rope == rope_k.rope
        and [(norm.x, norm.out) for norm in norms] in ([], [(q.out, q.out), (k.out, k.out)])
        and len({norm.eps for norm in norms}) < 2
        and all(norm.is_plain for norm in norms)
    )
    return ((q, k, v), norms, (rope_q, rope_k), write) if chained else None


def _gate_in_epilogue(ops: Ops, buffers: Buffers) -> Ops:
    """Fuse ``gate``, ``up`` and their product into one linear op with an epilogue."""
    fused: Ops = []
    for op in ops:
        if isinstance(op, Gate) and len(fused) >= 2:
            gate, up = fused[-2:]
            if (
                isinstance(gate, Linear)
                and isinstance(up, Linear)
                and gate.x == up.x
                and gate.scheme == up.scheme
                and (gate.out, up.out) == (op.gate, op.up)
            ):
                fused[-2:] = [
                    replace(gate, out=op.out, parts=(*gate.parts, *up.parts), gated=op.activation)
                ]
                continue
        fused.append(op)
    return fused


def _add_into_norm(ops: Ops, buffers: Buffers) -> Ops:
    """Fuse an addition to the residual with the norm that reads it."""
    fused: Ops = []
    for op in ops:
        if not isinstance(op, RmsNorm) or op.out == op.x:  # AddNorm is never in place
            fused.append(op)
            continue
        delta = None
        before = fused[-1] if fused else None
        if isinstance(before, Add) and before.out == before.x == op.x:
            delta = before.y
            fused.pop()
        fused.append(AddNorm(op.x, delta, op.out, op.weight, op.eps))
    return fused


def _activate_and_add(ops: Ops, buffers: Buffers) -> Ops:
    """Fuse ``x + activation(y)`` into one pass."""
    fused: Ops = []
    for op in ops:
        before = fused[-1] if fused else None
        if isinstance(op, Add) and isinstance(before, Activate) and before.out == op.y != op.x:
            fused[-1] = AddActivated(op.x, before.x, op.out, before.activation)
        else:
            fused.append(op)
    return fused
