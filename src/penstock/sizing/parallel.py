"""One model on several devices: the plans of ranks and stages, and what they exchange.

Ranks (tensor parallelism) and stages (pipeline parallelism) are those of the engine:
``plan/shard.py`` and ``plan/stages.py`` make their plans, of which both the costs and the exchanges
are counted. So ours (``gather``) cut all products by output columns and gather what the next op
reads whole: no bit depends on their number. Others (``reduce``) cut every second product by input
columns, and add up partial sums: two all-reduces of 16-bit numbers a layer in the place of ours. A
rank computes and keeps the same then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from penstock.models.spec import ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.ops import AllGather, GatherToFirst, Op, Rows
from penstock.plan.plan import Plan
from penstock.plan.shard import shard
from penstock.plan.stages import cut

Exchange = Literal["gather", "reduce"]
"""How ranks put a layer together: ``gather`` columns, as ours, or ``reduce`` sums, as others."""
Kind = Literal["all_gather", "all_reduce", "gather_to_first"]

_SUM_BYTES = 2
"""Bytes of a number of a partial sum that others exchange."""


@dataclass(frozen=True)
class Parallelism:
    """Ranks that share each layer, and stages that have some of the layers each."""

    tensor: int = 1
    pipeline: int = 1
    exchange: Exchange = "gather"

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        return f"TP {self.tensor}" + (f" x PP {self.pipeline}" if self.pipeline > 1 else "")


@dataclass(frozen=True)
class Collective:
    """An exchange of all ranks, which all wait for."""

    kind: Kind
    rows: Rows
    row_bytes: int
    """Bytes of a row, those of all ranks together."""


def divided(primitive: Plan, parallel: Parallelism) -> tuple[Plan, ...]:
    """Return what one rank of each stage runs, fused: the rank with most to do, which is the last.

    Raises ConfigError, which says what would fit, where a model cannot be cut so.
    """
    own = shard(primitive, parallel.tensor - 1, parallel.tensor)
    fused = fuse(own)
    if parallel.pipeline == 1:
        return (fused,)
    return tuple(stage.plan for stage in cut(own, fused, parallel.pipeline))


def without_exchanges(plan: Plan) -> list[Op]:
    """The ops of a rank's plan that compute."""
    return [op for op in plan.ops if not isinstance(op, AllGather | GatherToFirst)]


def collectives(plan: Plan) -> Counter[Collective]:
    """Return what ranks exchange in a step of a rank's ``plan``."""
    found: Counter[Collective] = Counter()
    for op in plan.ops:
        if isinstance(op, AllGather | GatherToFirst):
            own = plan.buffers[op.x]
            columns = max(end for _, end in op.ranks)
            kind: Kind = "all_gather" if isinstance(op, AllGather) else "gather_to_first"
            found[Collective(kind, own.rows, columns * (own.row_bytes // own.cols))] += 1
    return found


def reduced(plan: Plan, spec: ModelSpec) -> Counter[Collective]:
    """Return the same of others' ranks: a sum behind what mixes tokens in a layer, and one behind
    its MLP, of those layers that a stage's ``plan`` has."""
    found = Counter(
        {each: count for each, count in collectives(plan).items() if each.kind != "all_gather"}
    )
    own = {int(name.split(".")[1]) for name in plan.weights if name.startswith("layers.")}
    layers = [layer for number, layer in enumerate(spec.layers) if number in own]
    sums = sum((layer.mixer is not None) + (layer.mlp is not None) for layer in layers)
    found[Collective("all_reduce", Rows.TOKENS, spec.hidden_size * _SUM_BYTES)] += sums
    return found


def handed_on(plan: Plan) -> int:
    """Bytes that a stage hands to the next one for each token of a step; 0 of the last."""
    return sum(plan.buffers[name].row_bytes for name in plan.leaving)
