"""Decides the plans: that of the model, and that of what drafts for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from penstock.backends.backend import Backend
from penstock.cache.geometry import BLOCK_SIZE, sequence_blocks, window_blocks
from penstock.config import EngineConfig
from penstock.errors import ConfigError, PositionsError
from penstock.interface.adapters import AdapterSlots
from penstock.memory_budget import KEPT_STATES, Served
from penstock.models.rope import longrope_notes
from penstock.models.spec import ModelSpec
from penstock.plan.adapt import adapt
from penstock.plan.balance import balance
from penstock.plan.fuse import fuse
from penstock.plan.key_columns import key_columns
from penstock.plan.kv_groups import KvGroups, group_layers, kv_layers
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.plan.ranks import rank_plans
from penstock.plan.stages import Stage, cut
from penstock.quant.scheme import Quantization
from penstock.resolve.calibration import CalibrationDecision
from penstock.resolve.inputs import Inputs, model_types
from penstock.resolve.lengths import LengthDecision
from penstock.resolve.stages import StagesDecision
from penstock.resolve.step_limits import StepLimits
from penstock.resolved_config import rows_per_sequence
from penstock.scheduler.limits import most_logit_rows
from penstock.speculate.draft_choice import draft_logit_rows, served_draft


@dataclass(frozen=True)
class PlanDecision:
    """The plans to run, as far as memory planning must know them."""

    target: Served
    ranks: tuple[Plan, ...]
    """The part of the plan that each rank runs, where there are several and no stages; else
    none."""
    stages: tuple[Stage, ...]
    """The parts of the plan that the stages of a pipeline run, and their ranks, where there are
    several stages; else none."""
    draft: Served | None
    """The model or the heads that draft, with as many positions as there could be."""
    plan_with: Callable[[Quantization], Plan]
    """The plan that the model would have with its weights quantized otherwise."""
    notes: tuple[str, ...]


def decide_plans(
    inputs: Inputs,
    backend: Backend,
    schemes: Quantization,
    limits: StepLimits,
    calibration: CalibrationDecision,
    lengths: LengthDecision,
    pipeline: StagesDecision,
    adapters: AdapterSlots | None = None,
) -> PlanDecision:
    """Return the plans of the model, fused and balanced, and of its draft, fused; the backend runs
    both.

    ``calibration``: what of the model is measured before its weights are read. ``pipeline``: the
    stages that are asked for. ``adapters``: the room for these, if any.
    """
    config, spec, draft = inputs.config, inputs.spec, inputs.draft
    context, max_len = lengths.context, lengths.longest
    if context > spec.max_positions:
        raise PositionsError(
            f"max_model_len {context} exceeds the model's {spec.max_positions} positions; "
            "lower it (a config.json may have a rope scaling, by which there are more)"
        )
    types, half = inputs.types, backend.half_rows

    # Drafts are taken back, and with them the token before where a mask comes late.
    taken_back = rows_per_sequence(config.speculative, inputs.drafts)

    def lowered(quantization: Quantization) -> Plan:
        return lower(
            spec,
            types.weights,
            context,
            quantization,
            types.kv_cache,
            taps=inputs.taps,
            half=half,
            taken_back=taken_back,
        )

    def fused(primitive: Plan) -> Plan:
        whole = balance(fuse(primitive), calibration.matrices)
        if adapters is not None:
            whole = adapt(whole, adapters)
        whole = replace(whole, max_positions=max_len)
        if not calibration.keys:
            return whole
        return replace(whole, key_columns=key_columns(whole.ops, whole.kv_layers))

    def plan_with(quantization: Quantization) -> Plan:
        return fused(lowered(quantization))

    world, count = config.tensor_parallel, pipeline.count
    ranks: tuple[Plan, ...] = ()
    stages: tuple[Stage, ...] = ()
    if world == count == 1:
        plan = inputs.plan or plan_with(schemes)
    else:
        primitive = lowered(schemes)
        plan = fused(primitive)
    if count > 1:
        with _naming(f"pipeline_parallel {count}"):
            stages = cut(primitive, plan, count)
    if world > 1:
        with _naming(f"tensor_parallel {world}"):
            if stages:
                stages = tuple(stage.shared(world) for stage in stages)
            else:
                ranks = rank_plans(primitive, plan, world)
    groups = plan.kv_groups
    draft_bytes = 0 if draft is None else draft_block_bytes(config, draft, groups, max_len)
    parts = ranks or tuple(own for stage in stages for own in stage.parts) or (plan,)
    seqs, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    if inputs.drafts:
        logit_rows = draft_logit_rows(seqs, tokens)
    else:
        logit_rows = most_logit_rows(seqs, taken_back, tokens)
    target = Served(
        plan=plan,
        max_len=max_len,
        max_sequences=seqs,
        max_tokens=tokens,
        max_logit_rows=logit_rows,
        block_bytes=sum(own.kv_groups.page_bytes for own in parts) + draft_bytes,
        deterministic=config.deterministic,
        state_bytes=sum(backend.state_bytes(own, taken_back) for own in parts),
        kept_states=KEPT_STATES if config.enable_prefix_caching else 0,
        parts=parts[world * len(pipeline.addresses) :],
    )
    for own in parts:
        backend.check_runnable(own, inputs.trees)
    drafting = None
    if draft is not None:
        drafting = served_draft(
            config,
            target,
            draft,
            draft_bytes,
            half=half,
            quantize_activations=backend.defaults.quantize_activations,
            window_columns=backend.defaults.window_columns,
        )
        backend.check_runnable(drafting.plan)
    notes: tuple[str, ...] = ()
    if inputs.plan is None:  # a draft's was made with its target's
        notes = longrope_notes(plan.ropes, context, config.max_model_len is not None)
    return PlanDecision(target, ranks, stages, drafting, plan_with, notes)


@contextlib.contextmanager
def _naming(option: str) -> Iterator[None]:
    """Have errors say which option cannot be honoured."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from error


def draft_block_bytes(
    config: EngineConfig, draft: ModelSpec, target: KvGroups, max_len: int
) -> int:
    """Return the bytes of the draft model's KV cache for each block of the target's.

    They suffice for the draft to follow sequences of any lengths that the target can hold.
    """
    groups = group_layers(kv_layers(draft.layers), model_types(config, draft).kv_cache)
    theirs, blocks = target.windows or (None,), 1  # blocks count tokens where none are cached
    # Between the lengths at which a window is full, either number of blocks grows evenly, and
    # their ratio one way: it is largest at one of these.
    windows = {window for window in (*groups.windows, *theirs) if window is not None}
    full = (window_blocks(window) * BLOCK_SIZE for window in windows)
    for tokens in (1, max_len, *(length for length in full if length < max_len)):
        wanted = sequence_blocks(groups.windows, tokens)
        blocks = max(blocks, -(-wanted // sequence_blocks(theirs, tokens)))
    return blocks * groups.page_bytes
