"""Show how a model would run on this machine: every option with its reason, and the plan.

Reads the model's configuration but no weights. The plan is the list of operations that one step
runs, over named buffers, as the backend gets it.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from penstock.cli.options import RARE_ENGINE, add_engine_arguments, engine_config
from penstock.terminal import harmless

if TYPE_CHECKING:
    from penstock.engine.loader import EnginePlan
    from penstock.resolved_config import ChosenBackend


RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    parser.add_argument("--no-plan", action="store_true", help="show the options alone")


def run(args: argparse.Namespace) -> int:
    from penstock.engine.loader import plan_engine
    from penstock.hardware import detect
    from penstock.hardware_facts import facts
    from penstock.plan.explain import explain
    from penstock.plan.memory import plan_memory

    asked = engine_config(args)
    engine_plan = plan_engine(asked)
    config, hardware = engine_plan.config, detect()
    cores = "1 core" if hardware.physical_cores == 1 else f"{hardware.physical_cores} cores"
    print(f"machine  {hardware.cpu_model}, {cores} usable,", end=" ")
    print(f"{hardware.memory_available / 2**30:.1f} GiB available")
    lines = [f"         {fact}" for fact in facts(hardware)]
    lines += [f"kernels  {line}" for line in _kernels(config.backend)]
    lines += [f"model    {config.model_path}\n", config.explain()]
    profile = asked.profile
    if profile is not None:
        lines.append(f"profile  of {profile.made}, {profile.told}; {profile.promise}")
        if profile.max_waiting is not None:
            why = f"from the profile ({profile.briefly})"
            lines.append(f"serve    max_waiting  {profile.max_waiting}  ({why})")
    lines += [f"note     {note}" for note in config.notes]
    lines += [f"tuned    {line}" for line in _tuned(engine_plan)]
    print(harmless("\n".join(lines), sys.stdout))  # notes repeat what checkpoints say
    if engine_plan.stages:
        print("\n".join(_stages(engine_plan)))
    if not args.no_plan:
        plan = engine_plan.plan
        if engine_plan.ranks:
            plan = engine_plan.ranks[0]
            print(f"\nthe part of rank 0 of {len(engine_plan.ranks)}:")
        elif engine_plan.stages:
            plan, stages = engine_plan.stages[0].parts[0], len(engine_plan.stages)
            rank = "rank 0 of " if engine_plan.stages[0].ranks else ""
            print(f"\nthe part of {rank}stage 0 of {stages}:")
        memory = plan_memory(
            plan,
            config.max_num_batched_tokens,
            config.max_logit_rows,
            config.max_num_batched_tokens,
        )
        print("\n" + explain(plan, memory, config.state_bytes))
    return 0


def _kernels(name: ChosenBackend) -> list[str]:
    """Which kernels would run, or why a start would be refused: a plan can be shown without."""
    from penstock.backends.registry import backend
    from penstock.errors import ConfigError

    try:
        told = backend(name).kernels()
    except ConfigError as error:
        return [f"none: {error}"]
    return [] if told is None else [told]


def _stages(engine_plan: EnginePlan) -> list[str]:
    """Where the stages of a pipeline are, which layers each has, and what it hands on."""
    from penstock.plan.weight_bytes import weight_bytes

    places = engine_plan.config.pipeline_stages
    lines = []
    for stage in engine_plan.stages:
        number, (first, end) = stage.number, stage.layers
        where = places[number] if number < len(places) else "a process of this machine"
        if stage.is_last:
            where = "the engine's own process"
        size = sum(map(weight_bytes, stage.parts)) / 2**20
        does = "draws tokens" if stage.is_last else f"hands on {stage.sent_bytes:,} bytes a token"
        if stage.ranks:
            does += f", shared by {len(stage.ranks)} ranks"
        lines.append(
            f"stage    {number}  layers {first} to {end - 1}, {size:,.1f} MiB of weights, {does}  "
            f"({where})"
        )
    return lines


def _tuned(engine_plan: EnginePlan) -> list[str]:
    """What the engine artifact that a start would restore says of tuning."""
    from penstock.engine.loader import artifacts_of
    from penstock.errors import ConfigError, ModelError, WeightError

    try:
        artifacts = artifacts_of(engine_plan)
    except (ConfigError, ModelError, WeightError):  # a plan can be shown without weights
        return []
    return [tuning.summary() for tuning in artifacts.tunings()]
