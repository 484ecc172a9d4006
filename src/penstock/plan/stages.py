"""Stages: a pass between lowering and fusion that cuts a plan into the plans of a pipeline.

A stage has a contiguous range of layers; what precedes the first layer is the first stage's, and
what follows the last layer, with the output matrix, the last one's. Cuts are found in the plan's
ops alone: between two layers, where the fewest bytes are alive that later ops read. These buffers,
in most models the residual stream alone, are what a stage hands on
(:attr:`~penstock.plan.plan.Plan.leaving`); the next stage has them as the step's features, and ops
that read them as before. So every row is computed by the same ops on the same values, and no bit
depends on the number of stages.

A stage caches keys, values and states of its own layers. Layers that read another layer's keys and
values are on its stage: between them there is no cut. A stage may itself be shared by ranks
(:meth:`Stage.shared`), which have the parts that ``plan/shard.py`` makes of its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from penstock.cache.geometry import BLOCK_SIZE
from penstock.errors import ConfigError
from penstock.models.spec import StateSpec
from penstock.plan.costs import StepSize, op_cost
from penstock.plan.cuts import Cut, alive_at, indices, layer_cuts
from penstock.plan.fuse import fuse
from penstock.plan.key_columns import key_columns
from penstock.plan.ops import AddNorm, Buffer, RopeWrite
from penstock.plan.plan import Plan
from penstock.plan.ranks import rank_plans
from penstock.plan.stage_ops import (
    CACHED,
    STATEFUL,
    arrival,
    handing_on_taps,
    moved,
    taps_taken,
)
from penstock.plan.state_layers import state_specs

_SEQUENCES: Final = 8
_CONTEXT: Final = 16 * BLOCK_SIZE
"""The step by which stages are balanced: so many sequences decode, each behind so many tokens. With
half of the context, Qwen3 0.6B's shape has 18 layers on the first of two stages rather than 17, and
did about 5 % less, with 32 sequences as with prompts, beside one process in either run."""


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline, and what it takes of the steps of all."""

    plan: Plan
    """Fused. Of its features the columns of ``entering``, in their order."""
    primitive: Plan
    """What ``plan`` is made of."""
    states: tuple[StateSpec, ...]
    """Its layers that keep a state."""
    number: int
    layers: tuple[int, int]
    """The first of its layers, and the one behind its last."""
    kv_first: int
    """Number of the cached layers (``Plan.kv_layers``) of all stages before it."""
    groups: tuple[int, ...]
    """The whole plan's groups of cached layers that it has a part of, in the order of its own."""
    entering: tuple[Buffer, ...]
    """The buffers that the stage before it hands on; none of the first."""
    ranks: tuple[Plan, ...] = ()
    """The part of ``plan`` that each of its ranks runs, where there are several; else none."""

    @property
    def parts(self) -> tuple[Plan, ...]:
        """The plans of its processes."""
        return self.ranks or (self.plan,)

    def shared(self, world: int) -> Stage:
        """Return the stage as ``world`` ranks share it. Raises ConfigError where so many cannot."""
        return replace(self, ranks=rank_plans(self.primitive, self.plan, world, self.states))

    def with_plans(self, change: Callable[[Plan], Plan]) -> Stage:
        """Return the stage with ``change`` made in each of its plans."""
        return replace(self, plan=change(self.plan), ranks=tuple(map(change, self.ranks)))

    @property
    def is_last(self) -> bool:
        return not self.plan.leaving

    @property
    def sent_bytes(self) -> int:
        """Bytes that it hands on for each token of a step; 0 of the last."""
        return sum(self.plan.buffers[name].row_bytes for name in self.plan.leaving)

    @property
    def feature_size(self) -> int:
        return sum(buffer.cols for buffer in self.entering)


def cut(primitive: Plan, whole: Plan, count: int) -> tuple[Stage, ...]:
    """Return ``count`` stages of ``primitive``, at least two, balanced by what their ops read and
    multiply in a step.

    ``whole`` is the plan of one process: what fusion, balancing and scaling make of ``primitive``.
    Raises ConfigError, which says how many stages fit, where there cannot be so many.
    """
    if any(isinstance(op, AddNorm | RopeWrite) for op in primitive.ops):
        raise ValueError("a plan is cut before it is fused")
    primitive = handing_on_taps(primitive)
    cuts = layer_cuts(primitive)
    if count > len(cuts) + 1:
        raise ConfigError(f"{_why_not(primitive, len(cuts) + 1)}; take {_fitting(len(cuts) + 1)}")
    size = StepSize(
        tokens=_SEQUENCES,
        selected=_SEQUENCES,
        logits=_SEQUENCES,
        context_lens=np.full(_SEQUENCES, _CONTEXT, np.int32),
        positions=np.full(_SEQUENCES, _CONTEXT - 1, np.int32),
    )
    costs = [op_cost(primitive, op, size).num_bytes for op in primitive.ops]
    places = [0, *(each.place for each in cuts), len(primitive.ops)]
    sums = [sum(costs[a:b]) for a, b in pairwise(places)]
    ends = _balanced(sums, count)
    chosen = [Cut(0, 0), *(_crossed(primitive, cuts[end - 1]) for end in ends)]
    chosen.append(Cut(len(primitive.ops), len(primitive.spec.layers)))
    return tuple(
        _stage(primitive, whole, number, first, end)
        for number, (first, end) in enumerate(pairwise(chosen))
    )


def _crossed(plan: Plan, at: Cut) -> Cut:
    return replace(at, crossing=alive_at(plan.ops)[at.place])


def _why_not(plan: Plan, most: int) -> str:
    layers = len(plan.spec.layers)
    if most == layers:
        return f"the model has {layers} layer{'s' if layers > 1 else ''}"
    return (
        f"the {layers} layers of the model can be cut at {most - 1} place{'s' * (most != 2)}, "
        "since layers that share keys and values stay together"
    )


def _fitting(most: int) -> str:
    return "one stage, which is no pipeline" if most == 1 else f"at most {most} stages"


def _balanced(costs: Sequence[int], count: int) -> list[int]:
    """Where to cut ``costs`` into ``count`` parts, so that the largest sum is as small as can be,
    and of equal ones the last part: its stage has the rest of the engine beside it."""
    total = [0]
    for cost in costs:
        total.append(total[-1] + cost)
    # best[end]: the largest part of the first `end` costs in so many parts, and where these end.
    best: dict[int, tuple[int, tuple[int, ...]]] = {
        end: (total[end], ()) for end in range(1, len(costs) + 1)
    }
    for parts in range(2, count + 1):
        best = {
            end: min(
                (
                    (max(best[at][0], total[end] - total[at]), (*best[at][1], at))
                    for at in range(parts - 1, end)
                ),
                key=lambda each: (each[0], -each[1][-1]),
            )
            for end in range(parts, len(costs) + 1)
        }
    return list(best[len(costs)][1])


def _stage(primitive: Plan, whole: Plan, number: int, first: Cut, end: Cut) -> Stage:
    ops = primitive.ops[first.place : end.place]
    cached, stateful = indices(ops, CACHED), indices(ops, STATEFUL)
    kv_first, state_first = min(cached, default=0), min(stateful, default=0)
    kv_layers = primitive.kv_layers[kv_first : max(cached, default=-1) + 1]
    groups: list[int] = []
    runs: list[tuple[int, ...]] = []
    for index, group in enumerate(primitive.kv_groups):
        own = tuple(layer - kv_first for layer in group.layers if layer in cached)
        if own:
            groups.append(index)
            runs.append(own)
    entering = tuple(primitive.buffers[name] for name in first.crossing)
    buffers = dict(primitive.buffers)
    last = end.place == len(primitive.ops)
    ops = taps_taken(primitive, ops, last)
    plan = replace(
        primitive,
        ops=(
            *arrival(entering, buffers),
            *(moved(op, state_first if isinstance(op, STATEFUL) else kv_first) for op in ops),
        ),
        buffers=buffers,
        kv_layers=kv_layers,
        kv_runs=tuple(runs),
        state_layers=primitive.state_layers[state_first : max(stateful, default=-1) + 1],
        logits=primitive.logits if last else None,
        argmax=primitive.argmax if last else None,
        hidden=primitive.hidden if last else None,
        taps=primitive.taps if last else None,
        leaving=end.crossing,
    )
    fused = fuse(plan)
    names = {name for op in fused.ops for name in op.weights}
    fused = replace(
        fused,
        weights={name: weight for name, weight in whole.weights.items() if name in names},
        max_positions=whole.max_positions,
        key_columns=key_columns(fused.ops, kv_layers) if whole.key_columns else (),
    )
    layers = (first.layer, end.layer)
    states = state_specs(plan.spec.layers[slice(*layers)])
    return Stage(fused, plan, states, number, layers, kv_first, tuple(groups), entering)
