"""Plans with ops and options that few models have, made of those of tiny models."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.interface.plan_weights import PlanWeight
from penstock.interface.sources import Stored
from penstock.plan import fuse as fusion
from penstock.plan import ops
from penstock.plan.ops import common, fused, heads, mixers, primitive
from penstock.plan.plan import Plan


def ops_of_dense_models() -> set[type[ops.Op]]:
    """Every op that a plan without experts, for one rank, may have."""
    named = [
        value
        for module in (common, primitive, heads, fused, mixers)
        for value in vars(module).values()
    ]
    kinds = {kind for kind in named if isinstance(kind, type) and issubclass(kind, ops.Op)}
    return kinds - {ops.Op, ops.AllGather, ops.GatherToFirst}


@dataclass(frozen=True)
class Rare:
    """What is put into a plan."""

    layer_norm: bool = False
    """Layer norms, with biases, for all RMS norms but those of heads."""
    embedding_factor: float | None = None
    logit_cap: float | None = None
    interleaved: bool = False
    softcap: float | None = None
    slopes: bool = False
    sinks: bool = False


def rare(plan: Plan, wanted: Rare) -> Plan:
    """The primitive ``plan`` with what is wanted."""
    weights = dict(plan.weights)
    changed: list[ops.Op] = []
    for op in plan.ops:
        if isinstance(op, ops.RmsNorm) and op.weight is not None and wanted.layer_norm:
            bias = f"{op.weight}.bias"
            weights[bias] = weights[op.weight]
            changed.append(ops.LayerNorm(op.x, op.out, op.weight, bias, op.eps))
        elif isinstance(op, ops.Attention):
            sinks = None
            if wanted.sinks:
                sinks = f"layers.{op.layer}.sinks"
                weights[sinks] = PlanWeight(Stored(sinks, (op.heads,)))
            slopes = tuple(2.0 ** -(h + 2) for h in range(op.heads)) if wanted.slopes else None
            changed.append(replace(op, softcap=wanted.softcap, slopes=slopes, sinks=sinks))
        else:
            if isinstance(op, ops.Argmax) and wanted.logit_cap is not None:
                changed.append(ops.SoftCap(op.x, op.x, wanted.logit_cap))
            changed.append(op)
            if isinstance(op, ops.Embed) and wanted.embedding_factor is not None:
                changed.append(ops.Scale(op.out, op.out, wanted.embedding_factor))
    ropes = tuple(replace(rope, interleaved=wanted.interleaved) for rope in plan.ropes)
    return replace(plan, ops=tuple(changed), weights=weights, ropes=ropes)


def fuse_apart(plan: Plan, cuts: Sequence[int]) -> Plan:
    """``plan`` fused, but for runs of ops that one of ``cuts`` lies within.

    Cuts are places among the primitive plan's ops, and stay as far from its beginning while ops
    before them become fewer: some fall where nothing is fused.
    """
    buffers = dict(plan.buffers)
    done, renamed = fusion._narrow_last_layer(list(plan.ops), buffers)
    for rewrite in (
        fusion._join_qkv,
        fusion._gate_in_epilogue,
        fusion._add_into_norm,
        fusion._activate_and_add,
    ):
        bounds = sorted({0, len(done), *(cut for cut in cuts if cut < len(done))})
        runs = [done[i:j] for i, j in pairwise(bounds)]
        done = [op for run in runs for op in rewrite(run, buffers)]
    mentioned = {name for op in done for name in (*op.reads, *op.writes)}
    kept = {name: buffer for name, buffer in buffers.items() if name in mentioned}
    hidden = None if plan.hidden is None else renamed.get(plan.hidden, plan.hidden)
    return replace(plan, ops=tuple(done), buffers=kept, hidden=hidden)


class PlanWeights:
    """A WeightSource of whatever a plan reads: values depend on the name and its shape."""

    def __init__(self, plan: Plan, dtype: Any = np.float32) -> None:
        self._shapes = {name: weight.shape for name, weight in plan.weights.items()}
        self._dtype = dtype

    def names(self) -> Iterable[str]:
        return self._shapes

    def get(self, name: str) -> NDArray[Any]:
        shape = self._shapes[name]
        values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        if len(shape) == 2:
            values /= np.sqrt(shape[1])
        elif not name.endswith(("bias", "sinks")):
            values = 1 + values / 10
        return values.astype(self._dtype)
