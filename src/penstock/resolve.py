"""How the engine's options become the values that a machine runs with."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from penstock.artifact.root import default_root
from penstock.backends.backend import Backend, Obstacle
from penstock.backends.registry import choose_backend
from penstock.cache.geometry import (
    BLOCK_SIZE,
    KvDType,
    sequence_blocks,
    tokens_in,
)
from penstock.config import EngineConfig, KvCacheDTypeOption, ResolvedConfig, rows_per_sequence
from penstock.errors import ConfigError
from penstock.hardware import Hardware
from penstock.memory_budget import Demand, Served
from penstock.models.draft_heads import EagleSpec
from penstock.models.quantized import QuantizedFormat
from penstock.models.rope import longrope_notes
from penstock.models.spec import DType, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.kv_groups import KvGroups, group_layers, kv_layers
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant.choice import QuantizationName, choose
from penstock.quant.scheme import Quantization
from penstock.scheduler.limits import most_logit_rows
from penstock.speculate.draft_choice import draft_logit_rows, served_draft
from penstock.speculative_config import describe


@dataclass(frozen=True)
class _Quantization:
    """The options of quantization."""

    name: QuantizationName
    group: int | None
    zero_points: bool
    head: bool

    def schemes(self, activations: bool) -> Quantization:
        """Raises ConfigError where the options do not go together."""
        return choose(
            self.name,
            self.group,
            self.head,
            zero_points=self.zero_points,
            activations=activations,
        )


def _as_stored(asked: _Quantization, own: QuantizedFormat) -> _Quantization:
    """What a checkpoint that is quantized already runs with; raises ConfigError where other than
    its own scheme is asked for."""
    scheme = own.scheme
    name: QuantizationName = "int8" if scheme.bits == 8 else "int4"
    group = scheme.group_size or 0
    # They are named as asked: alone they may not even go together.
    others = []
    if asked.name not in ("none", name):
        others.append(f"quantization {asked.name}")
    if asked.group not in (None, group):
        others.append(f"quantization_group {asked.group}")
    if asked.zero_points and not scheme.zero_points:
        others.append("quantization_zero_points")
    if others:
        raise ConfigError(
            f"the checkpoint is quantized already ({own}) and is not rounded once more, which "
            f"{' and '.join(others)} would need; leave that out, or take the checkpoint that this "
            "one was made from"
        )
    # Unless the user asks for more, what the checkpoint leaves in floats stays so.
    head = asked.head and asked.name != "none"
    return _Quantization(name, group, scheme.zero_points, head)


def _order_notes(own: QuantizedFormat | None, backend: Backend) -> tuple[str, ...]:
    """What a plan cannot tell of a checkpoint's columns, and a backend may refuse when it reads
    the weights."""
    if own is None or not own.any_order or backend.runs_any_order:
        return ()
    return (
        "the checkpoint was quantized with desc_act and without static_groups: if its g_idx "
        f"tensors put columns in another order, the {backend.name} backend refuses it when weights "
        "are read; take a checkpoint that was quantized with desc_act false or static_groups true, "
        "or choose the slow --backend reference",
    )


@dataclass(frozen=True)
class Resolved:
    """What an engine's options amount to on a machine."""

    config: ResolvedConfig
    plan: Plan
    """Fused, and with rope tables for ``max_model_len`` positions."""
    draft: Plan | None
    """The fused plan of the model or the heads that draft, if there are any, with as many positions
    as there could be."""


def resolve(
    config: EngineConfig,
    hardware: Hardware,
    spec: ModelSpec,
    model_path: Path,
    tokenizer_path: Path,
    draft: ModelSpec | None = None,
    drafts: bool = False,
    plan: Plan | None = None,
) -> Resolved:
    """Decide every open option for this machine and model; raise ConfigError naming the fix.

    ``draft``: a model that drafts, whose cache shares the budget, block for block. ``drafts``: this
    one does, a token of each sequence a step. ``plan``: the model's fused plan, where that is known
    already: of a draft, when its target was resolved.
    """
    reasons: dict[str, str] = {}

    def decide(name: str, asked: object, why: str) -> None:
        reasons[name] = "as asked" if asked not in (None, "auto") else why

    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")
    decide("dtype", config.dtype, "the checkpoint's")
    if config.kv_cache_dtype not in get_args(KvCacheDTypeOption):
        raise ConfigError(
            "kv_cache_dtype must be auto, int8, float32, bfloat16 or float16, "
            f"not {config.kv_cache_dtype!r}"
        )
    dtype, kv_dtype = _types(config, spec)
    trees = config.speculative is not None and config.speculative.drafts_trees
    own = spec.quantized
    if config.quantize_activations is not None and config.quantization == "none" and own is None:
        raise ConfigError(
            "quantize_activations has no effect without quantization; set quantization to int8 or "
            "int4, or leave it out"
        )

    def obstacle(candidate: Backend) -> Obstacle | None:
        # What a backend lacks does not depend on how it rounds weights: any plan can be asked.
        found = candidate.obstacle(lower(spec, dtype, kv_dtype=kv_dtype), trees)
        if found is None and draft is not None:
            its, its_kv = _types(config, draft)
            found = candidate.obstacle(lower(draft, its, kv_dtype=its_kv))
        return found

    chosen = choose_backend(config.backend, hardware, obstacle)
    backend, defaults = chosen.backend, chosen.backend.defaults
    decide("backend", config.backend, chosen.reason)
    backend.check_deterministic(config.deterministic)
    reasons["deterministic"] = "as asked" if not config.deterministic else "the default"
    quantize_activations = config.quantize_activations
    if quantize_activations is None:
        quantize_activations = defaults.quantize_activations
    asked_for = _Quantization(
        config.quantization,
        config.quantization_group,
        config.quantization_zero_points,
        config.quantize_head,
    )
    quantized = asked_for if own is None else _as_stored(asked_for, own)
    schemes = quantized.schemes(quantize_activations)
    if schemes.linear is not None:
        stored = "" if own is None else f", as the checkpoint has them ({own})"
        reasons["quantization"] = f"matrices in {schemes.linear}{stored}"
        why = defaults.quantize_activations_why
        decide("quantize_activations", config.quantize_activations, why)
        reasons["quantize_head"] = f"the output matrix in {schemes.head or dtype}"
    else:
        reasons["quantization"] = "the checkpoint's values"
    threads = backend.threads(config.threads, hardware)
    reasons["threads"] = threads.reason
    reasons["cpus"] = "one for each thread" if threads.cpus else "placed by the system"

    seqs, tokens = defaults.max_num_seqs, defaults.max_num_batched_tokens
    max_num_seqs = config.max_num_seqs or min(seqs, config.max_num_batched_tokens or seqs)
    decide("max_num_seqs", config.max_num_seqs, f"{seqs}, within max_num_batched_tokens")
    budget = config.max_num_batched_tokens or max(tokens, max_num_seqs)
    decide("max_num_batched_tokens", config.max_num_batched_tokens, "the default")
    if budget < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({budget}) is less than max_num_seqs ({max_num_seqs}), so not "
            "every running sequence would get a token in every step; raise the first or lower the "
            "second"
        )
    decide("kv_cache_dtype", config.kv_cache_dtype, "the weights' type")
    groups = group_layers(kv_layers(spec), kv_dtype)
    most_len = config.max_model_len or spec.max_positions
    draft_bytes = 0 if draft is None else draft_block_bytes(config, draft, groups, most_len)
    block_bytes = groups.page_bytes + draft_bytes
    if most_len > spec.max_positions:
        raise ConfigError(
            f"max_model_len {most_len} exceeds the model's {spec.max_positions} positions; "
            "lower it, or give the model a rope scaling in its config.json"
        )
    taps = draft.taps if isinstance(draft, EagleSpec) else ()

    def plan_with(quantization: Quantization) -> Plan:
        return fuse(
            lower(spec, dtype, most_len, quantization, kv_dtype, taps=taps, half=backend.half_rows)
        )

    served = Served(
        plan=plan or plan_with(schemes),
        max_len=most_len,
        max_sequences=max_num_seqs,
        max_tokens=budget,
        max_logit_rows=draft_logit_rows(max_num_seqs, budget)
        if drafts
        else most_logit_rows(max_num_seqs, rows_per_sequence(config.speculative, drafts), budget),
        block_bytes=block_bytes,
        deterministic=config.deterministic,
    )
    backend.check_runnable(served.plan, trees)
    drafting = None
    if draft is not None:
        drafting = served_draft(
            config,
            served,
            draft,
            draft_bytes,
            half=backend.half_rows,
            quantize_activations=defaults.quantize_activations,
        )
        backend.check_runnable(drafting.plan)
    asked = config.kv_cache_bytes
    memory = backend.budget(Demand(served, asked, drafting, plan_with), chosen, hardware)
    reasons["weight_bytes"] = (
        f"all in {dtype}" if schemes.linear is None else f"codes, scales, and the rest in {dtype}"
    )
    kv_bytes = memory.kv_cache
    decide("kv_cache_bytes", asked, memory.why)
    shared = "" if draft is None or not draft.layers else ", the draft's part included"
    if block_bytes:
        num_blocks = kv_bytes // block_bytes
        reasons["num_blocks"] = f"{block_bytes:,} bytes per block of {BLOCK_SIZE} tokens{shared}"
        if len(groups) > 1:
            reasons["num_blocks"] += f", of one of {len(groups)} groups of layers"
        held = tokens_in(groups.windows, num_blocks, most_len)
    else:  # a head without attention
        num_blocks = max_num_seqs * -(-most_len // BLOCK_SIZE)
        reasons["num_blocks"] = "the model keeps no keys and values"
        held = num_blocks * BLOCK_SIZE
    if held < (min(most_len, BLOCK_SIZE) if config.max_model_len is None else most_len):
        needed = sequence_blocks(groups.windows, most_len) * block_bytes
        among = f", which {len(groups)} groups of layers share" if len(groups) > 1 else ""
        raise ConfigError(
            f"a KV cache of {kv_bytes:,} bytes holds {num_blocks} blocks of {BLOCK_SIZE} tokens "
            f"({block_bytes:,} bytes each{shared}){among}, {held} tokens, but one request may "
            f"need {most_len}; set kv_cache_bytes to at least {needed:,} or lower max_model_len"
        )
    decide(
        "max_model_len",
        config.max_model_len,
        "the model's limit" if most_len <= held else "what the KV cache holds",
    )
    if config.speculative is not None:
        config.speculative.validate()
        reasons["speculative"] = f"{describe(config.speculative)}, as asked"
    rope_notes: tuple[str, ...] = ()
    if plan is None:  # a draft's was made with its target's
        asked_len = config.max_model_len is not None
        rope_notes = longrope_notes(served.plan.ropes, most_len, asked_len)
    order_notes = () if config.load_format == "dummy" else _order_notes(own, backend)
    artifact_dir, reasons["artifact_dir"] = _artifact_dir(config, backend)
    resolved = ResolvedConfig(
        model_path=str(model_path),
        tokenizer_path=str(tokenizer_path),
        served_model_name=config.served_model_name or config.model or "penstock-demo",
        dtype=dtype,
        load_format=config.load_format,
        quantization=quantized.name,
        quantization_group=quantized.group,
        quantization_zero_points=quantized.zero_points,
        quantize_activations=quantize_activations,
        quantize_head=quantized.head,
        weight_bytes=memory.weights,
        backend=backend.name,
        threads=threads.count,
        cpus=threads.cpus,
        deterministic=config.deterministic,
        max_model_len=min(most_len, held),
        num_blocks=num_blocks,
        kv_cache_bytes=num_blocks * block_bytes,
        kv_cache_dtype=kv_dtype,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_logit_rows=served.max_logit_rows,
        enable_prefix_caching=config.enable_prefix_caching,
        speculative=config.speculative,
        drafts=drafts,
        artifact_dir=artifact_dir,
        seed=config.seed,
        reasons=reasons,
        notes=(*chosen.notes, *threads.notes, *backend.notes(), *rope_notes, *order_notes),
    )
    return Resolved(
        resolved,
        replace(served.plan, spec=spec, max_positions=resolved.max_model_len),
        None if drafting is None else drafting.plan,
    )


def _artifact_dir(config: EngineConfig, backend: Backend) -> tuple[str | None, str]:
    """Where engine artifacts are kept, None for nowhere, and why."""
    asked = config.artifact_dir
    if asked is not None and not (backend.keeps_weights and config.artifact):
        why = f"{backend.name} keeps no packed weights" if config.artifact else "artifacts are off"
        raise ConfigError(f"artifact_dir {asked} has no effect, since {why}; leave it out")
    if not backend.keeps_weights:
        return None, f"the {backend.name} backend keeps no packed weights"
    if not config.artifact:
        return None, "as asked"
    if asked is not None:
        if not asked:
            raise ConfigError("artifact_dir is empty; name a folder, or set artifact to false")
        return os.path.abspath(os.path.expanduser(asked)), "as asked"
    root = default_root()
    if root is None:
        return None, "there is no home folder; name one with artifact_dir"
    return str(root), "the default"


def _types(config: EngineConfig, spec: ModelSpec) -> tuple[DType, KvDType]:
    """The types of a model's weights in memory and of its KV cache."""
    dtype = spec.dtype if config.dtype == "auto" else config.dtype
    return dtype, dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype


def draft_block_bytes(
    config: EngineConfig, draft: ModelSpec, target: KvGroups, max_len: int
) -> int:
    """Bytes of the draft model's KV cache for each block of the target's.

    So many that it can follow one sequence as far as the target can, and many short ones.
    """
    _, kv_dtype = _types(config, draft)
    groups = group_layers(kv_layers(draft), kv_dtype)
    blocks = 1
    for tokens in (1, max_len):
        wanted = sequence_blocks(groups.windows, tokens)
        blocks = max(blocks, -(-wanted // sequence_blocks(target.windows, tokens)))
    return blocks * groups.page_bytes
