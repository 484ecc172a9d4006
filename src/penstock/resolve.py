"""How the engine's options become the values that a machine runs with."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from penstock.artifact.root import default_root
from penstock.backend_choice import (
    ChosenBackend,
    choose_backend,
    refuse_cpu_options,
    require_deterministic,
)
from penstock.backends.support import check_runnable
from penstock.cache.geometry import BLOCK_SIZE, KvDType, layer_block_bytes
from penstock.config import EngineConfig, KvCacheDTypeOption, ResolvedConfig, rows_per_sequence
from penstock.errors import ConfigError
from penstock.hardware import Hardware
from penstock.memory_budget import Served, gpu_budget, host_budget
from penstock.models.heads import EagleSpec
from penstock.models.spec import DType, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.plan.weight_bytes import weight_bytes
from penstock.quant.choice import choose
from penstock.quant.scheme import Quantization
from penstock.scheduler.limits import most_logit_rows
from penstock.speculate.draft_choice import draft_logit_rows, served_draft
from penstock.speculative_config import describe
from penstock.threads import Threads, choose_threads

DEFAULT_SEQS = 64
DEFAULT_BATCHED_TOKENS = 512
"""On two cores a 1B model computes this many prompt tokens in about a second: with more, those
who wait for their next token would notice."""
GPU_SEQS = 256
GPU_BATCHED_TOKENS = 2048
"""A GPU computes rows beside each other: with fewer tokens its products wait for weights."""


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
    dtype: DType = spec.dtype if config.dtype == "auto" else config.dtype
    if config.quantize_activations is not None and config.quantization == "none":
        raise ConfigError(
            "quantize_activations has no effect without quantization; set quantization to int8 or "
            "int4, or leave it out"
        )
    chosen = choose_backend(config.backend, hardware)
    backend, on_gpu = chosen.name, chosen.gpu is not None
    decide("backend", config.backend, chosen.reason)
    require_deterministic(config.deterministic, backend)
    reasons["deterministic"] = "as asked" if not config.deterministic else "the default"
    quantize_activations = config.quantize_activations
    if quantize_activations is None:
        quantize_activations = not on_gpu
    schemes = choose(
        config.quantization,
        config.quantization_group,
        config.quantize_head,
        zero_points=config.quantization_zero_points,
        activations=quantize_activations,
    )
    if schemes.linear is not None:
        reasons["quantization"] = f"matrices in {schemes.linear}"
        why = "reading weights takes the time" if on_gpu else "products of integers are exact"
        decide("quantize_activations", config.quantize_activations, why)
        reasons["quantize_head"] = f"the output matrix in {schemes.head or dtype}"
    else:
        reasons["quantization"] = "the checkpoint's values"
    if on_gpu:
        refuse_cpu_options(config.threads)
        threads = Threads(1, (), "the GPU computes")
    else:
        threads = choose_threads(config.threads, hardware)
    reasons["threads"] = threads.reason
    reasons["cpus"] = "one for each thread" if threads.cpus else "placed by the system"

    seqs = GPU_SEQS if on_gpu else DEFAULT_SEQS
    tokens = GPU_BATCHED_TOKENS if on_gpu else DEFAULT_BATCHED_TOKENS
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
    if config.kv_cache_dtype not in get_args(KvCacheDTypeOption):
        raise ConfigError(
            "kv_cache_dtype must be auto, int8, float32, bfloat16 or float16, "
            f"not {config.kv_cache_dtype!r}"
        )
    decide("kv_cache_dtype", config.kv_cache_dtype, "the weights' type")
    kv_dtype: KvDType = dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    draft_bytes = 0 if draft is None else draft_block_bytes(config, draft)
    block_bytes = kv_block_bytes(spec, kv_dtype) + draft_bytes
    most_len = config.max_model_len or spec.max_positions
    if most_len > spec.max_positions:
        raise ConfigError(
            f"max_model_len {most_len} exceeds the model's {spec.max_positions} positions; "
            "lower it, or give the model a rope scaling in its config.json"
        )
    taps = draft.taps if isinstance(draft, EagleSpec) else ()

    def plan_with(quantization: Quantization) -> Plan:
        return fuse(lower(spec, dtype, most_len, quantization, kv_dtype, taps=taps, half=on_gpu))

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
    check_runnable(served.plan, backend)
    drafting = None
    if draft is not None:
        drafting = served_draft(config, served, draft, draft_bytes, on_gpu)
    asked = config.kv_cache_bytes
    if chosen.gpu is not None:
        memory = gpu_budget(served, asked, chosen.gpu, drafting, plan_with)
    else:
        available = hardware.memory_available
        if drafting is not None:
            available -= weight_bytes(drafting.plan)
        memory = host_budget(served, asked, available)
    reasons["weight_bytes"] = (
        f"all in {dtype}" if schemes.linear is None else f"codes, scales, and the rest in {dtype}"
    )
    kv_bytes = memory.kv_cache
    decide("kv_cache_bytes", asked, memory.why)
    shared = "" if draft is None or not draft.layers else ", the draft's part included"
    if block_bytes:
        num_blocks = kv_bytes // block_bytes
        reasons["num_blocks"] = f"{block_bytes:,} bytes per block of {BLOCK_SIZE} tokens{shared}"
    else:  # a head without attention
        num_blocks = max_num_seqs * -(-most_len // BLOCK_SIZE)
        reasons["num_blocks"] = "the model keeps no keys and values"

    held = num_blocks * BLOCK_SIZE
    if held < (min(most_len, BLOCK_SIZE) if config.max_model_len is None else most_len):
        needed = -(-most_len // BLOCK_SIZE) * block_bytes
        raise ConfigError(
            f"a KV cache of {kv_bytes:,} bytes holds {num_blocks} blocks of {BLOCK_SIZE} tokens "
            f"({block_bytes:,} bytes each{shared}), {held} tokens, but one request may need "
            f"{most_len}; set kv_cache_bytes to at least {needed:,} or lower max_model_len"
        )
    decide(
        "max_model_len",
        config.max_model_len,
        "the model's limit" if most_len <= held else "what the KV cache holds",
    )
    if config.speculative is not None:
        config.speculative.validate()
        reasons["speculative"] = f"{describe(config.speculative)}, as asked"
    artifact_dir, reasons["artifact_dir"] = _artifact_dir(config, backend)
    resolved = ResolvedConfig(
        model_path=str(model_path),
        tokenizer_path=str(tokenizer_path),
        served_model_name=config.served_model_name or config.model or "penstock-demo",
        dtype=dtype,
        load_format=config.load_format,
        quantization=config.quantization,
        quantization_group=config.quantization_group,
        quantization_zero_points=config.quantization_zero_points,
        quantize_activations=quantize_activations,
        quantize_head=config.quantize_head,
        weight_bytes=memory.weights,
        backend=backend,
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
        notes=(*chosen.notes, *(threads.notes if backend == "cpu" else ())),
    )
    return Resolved(
        resolved,
        replace(served.plan, spec=spec, max_positions=resolved.max_model_len),
        None if drafting is None else drafting.plan,
    )


def _artifact_dir(config: EngineConfig, backend: ChosenBackend) -> tuple[str | None, str]:
    """Where engine artifacts are kept, None for nowhere, and why."""
    asked = config.artifact_dir
    if asked is not None and (backend != "cpu" or not config.artifact):
        why = "artifacts are off" if not config.artifact else f"{backend} keeps no packed weights"
        raise ConfigError(f"artifact_dir {asked} has no effect, since {why}; leave it out")
    if backend != "cpu":
        return None, f"the {backend} backend keeps no packed weights"
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


def draft_block_bytes(config: EngineConfig, draft: ModelSpec) -> int:
    """Bytes of one KV block of the model that drafts for ``spec``."""
    asked = config.kv_cache_dtype
    own = draft.dtype if config.dtype == "auto" else config.dtype
    return kv_block_bytes(draft, own if asked == "auto" else asked)


def kv_block_bytes(spec: ModelSpec, dtype: KvDType) -> int:
    """Bytes of one KV block across all layers."""
    return sum(
        layer_block_bytes(dtype, layer.attention.num_kv_heads, layer.attention.head_dim)
        for layer in spec.layers
        if layer.attention.kv_from is None
    )
