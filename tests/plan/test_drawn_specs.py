"""Every combination of what a layer may be declared to be is lowered and fused rightly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.drawn_specs import ranks_can_share, specs
from support.kv_tables import in_groups
from support.naive_decoder import logits_of
from support.rank_steps import own_logits
from support.ranks import in_ranks
from support.state_steps import with_states
from support.tame_weights import TameWeights
from support.tiny_plans import Chunk, step_of, tokens_of

from penstock.backends.reference.executor import ReferenceExecutor
from penstock.errors import ConfigError
from penstock.interface.collective import ThreadRank
from penstock.interface.executor import Limits
from penstock.models.spec import ModelSpec
from penstock.plan import ops
from penstock.plan.explain import explain
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.memory import plan_memory
from penstock.plan.plan import Plan
from penstock.plan.shard import shard

LIMITS = Limits(
    num_blocks=4, max_tokens=64, max_logit_rows=64, max_sequences=4, threads=1, num_states=4
)
LENGTH = 40
TOKENS, OTHER = tokens_of(1, LENGTH), tokens_of(2, 7)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def logits_along(plan: Plan, rank: ThreadRank | None = None) -> NDArray[np.float32]:
    """Logits after each token of a sequence that is read in two chunks, beside another, and then
    token by token; ``rank``: by one of several ranks."""
    groups = len(plan.kv_groups)
    limits = replace(LIMITS, num_blocks=groups * LIMITS.num_blocks)
    executor = ReferenceExecutor(plan, TameWeights(plan), limits, rank)
    blocks, rows = [3, 1], []

    def run(*chunks: Chunk) -> NDArray[np.float32]:
        step = step_of(chunks)
        if plan.state_layers:
            step = with_states(step)
        return executor.run(in_groups(step, groups, LIMITS.num_blocks)).logits

    rows.append(run(Chunk(OTHER, 0, 7, [2]), Chunk(TOKENS, 0, 11, blocks, rows=range(11)))[1:])
    rows.append(run(Chunk(TOKENS, 11, 35, blocks, rows=range(11, 35))))
    rows += [run(Chunk(TOKENS, i, i + 1, blocks)) for i in range(35, LENGTH)]
    return np.concatenate(rows)


@settings(deadline=None, max_examples=40, suppress_health_check=SLOW)
@given(spec=specs(states=True))
def test_a_plan_and_its_fused_form_compute_what_the_spec_says(spec: ModelSpec) -> None:
    primitive = lower(spec)
    weights = TameWeights(primitive)
    expected = logits_of(spec, weights.get, TOKENS)
    # An error of a logit is as large as before the cap, which makes logits small.
    size = np.abs(logits_of(replace(spec, logits_softcap=None), weights.get, TOKENS)).max()
    for plan in (primitive, fuse(primitive)):
        np.testing.assert_allclose(logits_along(plan), expected, rtol=0, atol=2e-5 * size)


@settings(deadline=None, max_examples=30, suppress_health_check=SLOW)
@given(spec=specs(states=True), fused=st.booleans())
def test_ranks_compute_what_one_does(spec: ModelSpec, fused: bool) -> None:
    """Or say that they cannot share the heads of a state."""
    plan = lower(spec)

    def made(whole: Plan) -> Plan:
        return fuse(whole) if fused else whole

    try:
        shares = [shard(plan, rank, 2) for rank in range(2)]
    except ConfigError:
        assert not ranks_can_share(spec, 2)
        return
    assert ranks_can_share(spec, 2)
    alone = logits_along(made(plan))
    found = in_ranks(2, lambda rank: logits_along(made(shares[rank.rank]), rank))
    for own, rank, several in zip(shares, range(2), found, strict=True):
        of_alone = own_logits(own, rank, alone)
        np.testing.assert_allclose(several, of_alone, rtol=0, atol=2e-5 * np.abs(alone).max())


@settings(deadline=None, max_examples=60, suppress_health_check=SLOW)
@given(spec=specs(states=True), fused=st.booleans())
def test_products_and_attention_read_what_the_hardware_multiplies(
    spec: ModelSpec, fused: bool
) -> None:
    """And all that is added, normed or told is float32."""
    plan = lower(spec, "bfloat16")
    plan = fuse(plan) if fused else plan

    def elements(*names: str) -> set[str]:
        return {plan.buffers[name].element for name in names}

    for op in plan.ops:
        if isinstance(op, (ops.Linear, ops.ExpertLinear, ops.HeadLinear)):
            assert elements(op.x) == {"bfloat16"}
        elif isinstance(op, ops.Attention):
            assert elements(op.q) == {"bfloat16"}
            ups = {gate.up for gate in plan.ops if isinstance(gate, ops.Gate)}
            gated = bool(ups & {op.out, f"{op.out}.selected"})
            assert elements(op.out) == {"float32" if gated else "bfloat16"}
        elif isinstance(op, (ops.ShortConv, ops.Add, ops.Scale, ops.SoftCap)):
            assert elements(*op.reads, *op.writes) == {"float32"}
        elif isinstance(op, (ops.RmsNorm, ops.LayerNorm)):
            assert elements(op.x) == {"float32"}
        elif isinstance(op, ops.AddNorm):
            assert elements(op.residual, *([op.delta] if op.delta else [])) == {"float32"}
    assert elements(plan.logits) == {"float32"}


@settings(deadline=None, max_examples=40, suppress_health_check=SLOW)
@given(spec=specs(states=True), taps=st.booleans())
def test_a_plan_reads_only_what_was_written_and_can_be_placed_and_printed(
    spec: ModelSpec, taps: bool
) -> None:
    primitive = lower(spec, taps=(0,) if taps else ())
    for plan in (primitive, fuse(primitive)):
        written: set[str] = set()
        for op in plan.ops:
            assert set(op.reads) - {*op.writes, *written} == set()
            written.update(op.writes)
        assert written == set(plan.buffers)
        assert set(plan.results) <= written
        assert {name for op in plan.ops for name in op.weights} == set(plan.weights)
        memory = plan_memory(plan, 64, 8)
        assert memory.total_bytes <= memory.unshared_bytes
        assert len(explain(plan, memory).splitlines()) > 5
    fused = fuse(primitive)
    mixing = [i for i, op in enumerate(fused.ops) if op.mixes]
    if not mixing:
        return
    *tapped, _ = (i for i, op in enumerate(fused.ops) if isinstance(op, ops.SelectRows))
    tapped = [i for i in tapped if fused.ops[i].writes == (plan.taps,)]
    for op in fused.ops[max(*mixing, *tapped, 0) + 1 :]:
        for name in op.writes:
            assert fused.buffers[name].rows.base != "T"
