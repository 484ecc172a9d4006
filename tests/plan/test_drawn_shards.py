"""Every combination of what a layer may be declared to be is sharded without changing a bit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.drawn_specs import UNEVEN_HEADS, ranks_can_share, specs
from support.rank_steps import own_logits
from support.ranks import in_ranks
from support.state_steps import with_states
from support.tame_weights import TameWeights
from support.tiny_plans import Chunk, step_of, tokens_of

from penstock.backends.reference.executor import ReferenceExecutor
from penstock.engine.stages.columns import handed_on, own_step
from penstock.errors import ConfigError
from penstock.interface.collective import Collective, ThreadRank
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.models.spec import ModelSpec
from penstock.peers.channel import Payload
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.plan.shard import shard
from penstock.plan.stages import Stage, cut

LIMITS = Limits(
    num_blocks=4, max_tokens=64, max_logit_rows=64, max_sequences=4, threads=1, num_states=4
)
TOKENS = tokens_of(1, 20)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


class Rows:
    """Weights of a rank: the rows of its shares, taken from what the whole plan's source has."""

    def __init__(self, whole: Plan, own: Plan) -> None:
        self._source, self._own = TameWeights(whole), own.weights

    def names(self) -> Any:
        return self._own.keys()

    def get(self, name: str) -> NDArray[Any]:
        share = self._own[name].share
        if share is None:
            return self._source.get(name)
        return share.of(self._source.get(share.name))

    def member(self, name: str, index: int) -> NDArray[Any]:
        matrix: NDArray[Any] = self.get(name)[index]
        return matrix


def steps_of(plan: Plan) -> list[StepInput]:
    chunks = [Chunk(TOKENS, 0, 11, [3], rows=range(11))], [Chunk(TOKENS, 11, 12, [3])]
    steps = [with_states(step) if plan.state_layers else step for step in map(step_of, chunks)]
    # Tables are alike: the reference keeps layers apart.
    return [replace(step, groups=step.groups * len(plan.kv_groups)) for step in steps]


def logits(whole: Plan, plan: Plan, fused: bool, rank: Collective | None = None) -> Any:
    plan = fuse(plan) if fused else plan
    executor = ReferenceExecutor(plan, Rows(whole, plan), LIMITS, rank)
    return np.concatenate([executor.run(step).logits for step in steps_of(plan)])


def staged_logits(whole: Plan, world: int) -> Any:
    """The logits that rank 0 of the last of two stages has, each of which so many ranks share."""
    rows, payloads = list[Any](), [np.empty(0, np.uint8) for _ in steps_of(whole)]
    for stage in cut(whole, fuse(whole), 2):
        first, *_ = in_ranks(world, partial(run_stage, whole, stage.shared(world), payloads))
        rows, payloads = [row for row, _ in first], [sent for _, sent in first]
    return np.concatenate(rows)


def run_stage(
    whole: Plan, stage: Stage, payloads: list[Payload], rank: ThreadRank
) -> list[tuple[Any, Payload]]:
    """The logits that a rank of a stage has of each step, and what rank 0 hands on."""
    own = stage.ranks[rank.rank]
    executor = ReferenceExecutor(own, Rows(whole, own), LIMITS, rank)
    done = []
    for step, payload in zip(steps_of(whole), payloads, strict=True):
        result = executor.run(own_step(stage, step, payload))
        sent = [] if rank.rank else handed_on(stage, result)
        done.append((result.logits.copy(), np.concatenate([payload[:0], *sent])))
    return done


def check(spec: ModelSpec, dtype: Any, fused: bool, world: int) -> None:
    """So many ranks give bitwise what one gives, if they can share the model, and are refused if
    not."""
    plan = lower(spec, dtype)
    if not ranks_can_share(spec, world):
        with pytest.raises(ConfigError, match=f"{world} ranks cannot share"):
            shard(plan, 0, world)
        return
    expected = logits(plan, plan, fused)

    def of_rank(rank: ThreadRank) -> Any:
        return logits(plan, shard(plan, rank.rank, rank.world), fused, rank)

    for rank, got in enumerate(in_ranks(world, of_rank)):
        own = shard(plan, rank, world)
        np.testing.assert_array_equal(got, own_logits(own, rank, expected))


@pytest.mark.slow
@settings(deadline=None, max_examples=30, suppress_health_check=SLOW)
@given(spec=specs(states=True), dtype=st.sampled_from(["float32", "bfloat16"]), fused=st.booleans())
def test_two_ranks_compute_what_one_does(spec: ModelSpec, dtype: Any, fused: bool) -> None:
    check(spec, dtype, fused, 2)


@settings(deadline=None, max_examples=40, suppress_health_check=SLOW)
@given(
    spec=specs(states=True, heads=UNEVEN_HEADS),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    fused=st.booleans(),
    world=st.sampled_from([3, 4, 5, 8]),
)
def test_any_number_of_ranks_computes_what_one_does(
    spec: ModelSpec, dtype: Any, fused: bool, world: int
) -> None:
    """Also where it does not divide the KV heads, or exceeds them."""
    check(spec, dtype, fused, world)


@pytest.mark.slow
@settings(deadline=None, max_examples=15, suppress_health_check=SLOW)
@given(
    spec=specs(states=True, heads=UNEVEN_HEADS),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    world=st.sampled_from([2, 3]),
)
def test_ranks_of_stages_compute_what_one_does(spec: ModelSpec, dtype: Any, world: int) -> None:
    """Whatever is alive between two layers, rank 0 has all of it to hand on."""
    plan = lower(spec, dtype)
    assume(ranks_can_share(spec, world))
    try:
        cut(plan, fuse(plan), 2)
    except ConfigError:  # there is no place
        assume(False)
    np.testing.assert_array_equal(staged_logits(plan, world), logits(plan, plan, True))
