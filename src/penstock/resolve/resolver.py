"""Turns the engine's options into the values that a machine runs with, decision by decision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from penstock.config import EngineConfig
from penstock.hardware import Hardware
from penstock.models.spec import ModelSpec
from penstock.plan.plan import Plan
from penstock.plan.stages import Stage
from penstock.resolve.adapters import decide_adapters
from penstock.resolve.backend import decide_artifacts, decide_backend, decide_threads
from penstock.resolve.calibration import decide_calibration
from penstock.resolve.inputs import Inputs, Reasons, check_options, reason
from penstock.resolve.kv_disk import decide_kv_disk
from penstock.resolve.kv_host import decide_kv_host
from penstock.resolve.lengths import decide_lengths
from penstock.resolve.memory import decide_memory
from penstock.resolve.plans import decide_plans
from penstock.resolve.profile import use_of_profile
from penstock.resolve.quantization import as_read, decide_quantization
from penstock.resolve.ranks import decide_ranks
from penstock.resolve.sampling import decide_sampling
from penstock.resolve.stages import decide_stages
from penstock.resolve.step_limits import decide_step_limits
from penstock.resolved_config import ResolvedConfig
from penstock.speculative_config import describe


@dataclass(frozen=True)
class Resolved:
    """What an engine's options amount to on a machine."""

    config: ResolvedConfig
    plan: Plan
    """Fused, and with rope tables for ``max_model_len`` positions."""
    ranks: tuple[Plan, ...]
    """The part of the plan that each rank runs, where there are several and no stages; else
    none."""
    stages: tuple[Stage, ...]
    """The parts of the plan that the stages of a pipeline run, and their ranks, where there are
    several stages; else none."""
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
    taps: tuple[int, ...] | None = None,
) -> Resolved:
    """Decide every open option for this machine and model; raise ConfigError naming the fix.

    ``draft``, ``drafts``, ``plan`` and ``taps`` are as in :class:`Inputs`.
    """
    inputs = Inputs(config, hardware, spec, draft, drafts, plan, taps)
    check_options(inputs)
    ranks = decide_ranks(config)
    pipeline = decide_stages(config)
    adapters = decide_adapters(config)
    chosen = decide_backend(inputs)
    backend = chosen.backend
    quantization = decide_quantization(inputs, backend)
    calibration = decide_calibration(inputs, backend, quantization.schemes, tokenizer_path)
    spec = as_read(spec, config, backend)
    inputs = replace(
        inputs, spec=spec, draft=None if draft is None else as_read(draft, config, backend)
    )
    compute = decide_threads(inputs, backend)
    limits = decide_step_limits(config, backend.defaults)
    lengths = decide_lengths(config, spec)
    plans = decide_plans(
        *(inputs, backend, quantization.schemes, limits, calibration, lengths, pipeline),
        adapters.slots,
    )
    memory = decide_memory(inputs, chosen, quantization.schemes, plans, lengths)
    speculation = _check_speculation(config)
    kv_host = decide_kv_host(inputs, chosen, memory)
    kv_disk = decide_kv_disk(config)
    sampling = decide_sampling(inputs)
    artifacts = decide_artifacts(config, backend)
    reasons = {"dtype": reason(config.dtype, _dtype_reason(spec))}
    for decision in (
        *(chosen, quantization, calibration, compute, ranks, pipeline, limits, adapters, memory),
        lengths,
    ):
        reasons.update(decision.reasons)
    threads, weights = compute.threads, quantization.weights
    notes = (*chosen.choice.notes, *threads.notes, *backend.notes())
    resolved = ResolvedConfig(
        model_path=str(model_path),
        tokenizer_path=str(tokenizer_path),
        served_model_name=config.served_model_name or config.model or "penstock-demo",
        dtype=inputs.types.weights,
        load_format=config.load_format,
        quantization=weights.name,
        quantization_group=weights.group,
        quantization_zero_points=weights.zero_points,
        quantize_activations=quantization.activations,
        window_columns=backend.defaults.window_columns,
        quantize_head=weights.head,
        quantization_calibration=calibration.matrices or calibration.keys,
        weight_bytes=memory.weight_bytes,
        backend=backend.name,
        threads=threads.count,
        cpus=threads.cpus,
        tensor_parallel=ranks.world,
        pipeline_parallel=pipeline.count,
        pipeline_stages=pipeline.addresses,
        max_loras=adapters.count,
        max_lora_rank=adapters.rank,
        lora_modules=dict(adapters.modules),
        deterministic=config.deterministic,
        max_model_len=memory.max_model_len,
        max_input_len=config.max_input_len,
        max_output_len=config.max_output_len,
        num_blocks=memory.num_blocks,
        kv_cache_bytes=memory.kv_cache_bytes,
        kv_cache_dtype=inputs.types.kv_cache,
        num_states=memory.num_states,
        state_bytes=plans.target.state_bytes,
        max_num_seqs=memory.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_logit_rows=plans.target.max_logit_rows,
        enable_prefix_caching=config.enable_prefix_caching,
        speculative=config.speculative,
        drafts=drafts,
        artifact_dir=artifacts.folder,
        sampling_defaults=sampling.defaults,
        seed=config.seed,
        kv_disk=kv_disk.disk,
        kv_host_bytes=kv_host.bytes,
        reasons={
            **reasons,
            **kv_host.reasons,
            **kv_disk.reasons,
            **speculation,
            **sampling.reasons,
            **artifacts.reasons,
        },
        notes=(*spec.notes, *notes, *plans.notes, *quantization.notes),
    )
    use = use_of_profile(config, resolved, spec, plans.target.plan, hardware)
    resolved = msgspec.structs.replace(
        resolved,
        reasons={**resolved.reasons, **use.reasons},
        notes=(*resolved.notes, *use.notes),
    )

    def settled(plan: Plan) -> Plan:
        return replace(plan, spec=spec, max_positions=resolved.max_model_len)

    return Resolved(
        resolved,
        settled(plans.target.plan),
        tuple(map(settled, plans.ranks)),
        tuple(stage.with_plans(settled) for stage in plans.stages),
        None if plans.draft is None else plans.draft.plan,
    )


def _dtype_reason(spec: ModelSpec) -> str:
    """Why weights are in a dtype that nobody asked for."""
    form = spec.quantized
    if form is None or not form.schemes:
        return "the checkpoint's"
    return "the checkpoint's, of what is not quantized and of what is computed"


def _check_speculation(config: EngineConfig) -> Reasons:
    """Raise ConfigError if an option of the speculative method is out of range."""
    if config.speculative is None:
        return {}
    config.speculative.validate()
    return {"speculative": f"{describe(config.speculative)}, as asked"}
