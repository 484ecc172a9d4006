"""Measures what :class:`~penstock.sizing.machine_times.MachineTimes` is fitted to: a minute of the
engine itself, with a made-up model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from penstock.backends.cpu.turned import as_native
from penstock.bench.calibration_model import CalibrationModel
from penstock.bench.latency import LatencyWorkload, PhaseSteps, run_latency
from penstock.bench.meter import Step, StepProfile
from penstock.bench.op_meter import OpMeter
from penstock.bench.progress import Progress
from penstock.bench.session import Session
from penstock.config import EngineConfig
from penstock.dtypes import DType, QuantizationName
from penstock.hardware import detect
from penstock.plan.costs import Demand, demand
from penstock.plan.plan import Plan
from penstock.sizing.machine_times import MachineTimes, OpObservation, StepObservation

_WORKLOADS = ((1, 512), (1, 1536), (2, 96), (4, 64), (8, 48), (16, 32), (32, 16))
"""Sequences and prompt tokens: decode at 1 to 32 rows, prompts in chunks of 96 to 512, contexts
from a block to 1,536 tokens."""
_CACHED_TOKENS = 4096
"""Tokens that the cache holds: as few as serve, so that all of it has been touched before what is
measured. Memory's first touch takes as long as a product."""


def calibrate(
    quantizations: Sequence[QuantizationName],
    config: EngineConfig,
    dtype: DType = "bfloat16",
    progress: Progress | None = None,
) -> MachineTimes:
    """Return the constants of this machine for weights of these types, and otherwise of ``dtype``,
    with the threads, the type of keys and values and the step's limit of ``config``.

    Raises ConfigError where the cpu backend cannot run.
    """
    ops: list[OpObservation] = []
    steps: list[StepObservation] = []
    model = CalibrationModel.of(detect(), dtype)
    for quantization in quantizations:
        made = _measure(model, quantization, config, progress)
        ops += made[0]
        steps += made[1]
    normed, _ = _measure(CalibrationModel(2, True, dtype), quantizations[0], config, progress)
    ops += [each for each in normed if each.demand.work == "cache"]
    return MachineTimes.fit(ops, steps)


def _measure(
    model: CalibrationModel,
    quantization: QuantizationName,
    config: EngineConfig,
    progress: Progress | None,
) -> tuple[list[OpObservation], list[StepObservation]]:
    with tempfile.TemporaryDirectory(prefix="penstock-calibration-") as folder:
        model.write(Path(folder))
        asked = EngineConfig(
            model=folder,
            load_format="dummy",
            quantization=quantization,
            backend="cpu",
            threads=config.threads,
            kv_cache_dtype=config.kv_cache_dtype,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=2048,
            max_num_seqs=64,
            kv_cache_bytes=_cache_bytes(model),
            artifact=False,
        )
        with Session.open(asked, OpMeter, progress) as session:
            plan = as_native(session.engine_plan.plan)
            phases = PhaseSteps()
            for batch, prompt in _WORKLOADS:
                workload = LatencyWorkload(
                    batch_size=batch, input_len=prompt, output_len=6, repeats=3, warmup=1
                )
                run_latency(
                    session.core, session.meter, session.vocab_size, workload, phases, progress
                )
    every = [step for run in phases.prefill for step in run] + phases.decode
    return list(_ops(plan, every)), list(_steps(every))


def _cache_bytes(model: CalibrationModel) -> int:
    """Room for :data:`_CACHED_TOKENS` in 16 bits, of 4 KV heads of 128."""
    return _CACHED_TOKENS * model.layers * 2 * 4 * 128 * 2


def _ops(plan: Plan, steps: Sequence[Step]) -> Iterator[OpObservation]:
    """The least median of all ops of one kind among steps of one size: other work on the machine
    only ever adds time."""
    places: dict[Demand, list[int]] = {}
    for index, op in enumerate(plan.ops):
        places.setdefault(demand(plan, op), []).append(index)
    least: dict[tuple[Demand, tuple[int, ...]], OpObservation] = {}
    for profile in _profiles(steps):
        size = profile.size
        key = (size.tokens, size.selected, size.sequences, int(size.context_lens.sum()))
        for each, indices in places.items():
            seconds = median(profile.ops[index].seconds for index in indices)
            before = least.get((each, key))
            if seconds > 0 and (before is None or seconds < before.seconds):
                least[each, key] = OpObservation(each, size, seconds)
    return iter(least.values())


def _steps(steps: Sequence[Step]) -> Iterator[StepObservation]:
    """What steps took outside their ops: the median of those with as many sequences."""
    found: dict[int, list[StepObservation]] = {}
    for step in steps:
        if step.run is None or step.run.profile is None:
            continue
        profile = step.run.profile
        rest = step.seconds - sum(each.seconds for each in profile.ops)
        found.setdefault(profile.size.sequences, []).append(StepObservation(profile.size, rest))
    for each in found.values():
        yield replace(each[0], seconds=median(one.seconds for one in each))


def _profiles(steps: Sequence[Step]) -> Iterator[StepProfile]:
    for step in steps:
        if step.run is not None and step.run.profile is not None:
            yield step.run.profile
