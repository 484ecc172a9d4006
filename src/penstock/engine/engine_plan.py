"""What is decided of an engine before any weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from penstock.cache.state_slots import StateLimits
from penstock.config import EngineConfig
from penstock.interface.executor import Limits
from penstock.interface.plan_weights import PlanWeight
from penstock.models.spec import ModelSpec
from penstock.plan.plan import Plan
from penstock.plan.stages import Stage
from penstock.resolved_config import ResolvedConfig
from penstock.threads import divided


@dataclass(frozen=True)
class EnginePlan:
    """The resolved options and the plan of a model, decided before any weight is read."""

    config: ResolvedConfig
    spec: ModelSpec
    plan: Plan
    asked: EngineConfig
    """The options as they were given."""
    draft: EnginePlan | None = None
    """Plan of the draft model or draft heads, if there are any. The spec of heads is one of
    ``models/draft_heads.py``."""
    ranks: tuple[Plan, ...] = ()
    """The part of the plan that each rank runs, where there are several and no stages; else
    none."""
    stages: tuple[Stage, ...] = ()
    """The part of the plan that each stage of a pipeline runs, and its ranks, where there are
    several stages; else none."""
    stage: Stage | None = None
    """The stage that this is the plan of, where it is of one alone."""
    of_all_stages: Mapping[str, PlanWeight] = field(default_factory=dict)
    """The weights of all stages then, since all are in the checkpoint."""

    taps: tuple[int, ...] = ()
    """The layers whose inputs a head that drafts reads, which may be another process's."""

    def of_stage(self, number: int, threads: int, cpus: tuple[int, ...]) -> EnginePlan:
        """Return the plan of a stage by itself, which its ranks may share, with these threads."""
        stage = self.stages[number]
        return replace(
            self,
            config=msgspec.structs.replace(self.config, threads=threads, cpus=cpus),
            plan=stage.plan,
            ranks=stage.ranks,
            stages=(),
            stage=stage,
            of_all_stages=self.plan.weights,
        )

    def resolved_as(self, config: ResolvedConfig) -> EnginePlan:
        """Return this plan with the options that another process of the same engine has decided,
        and as many positions."""

        def reaching(plan: Plan) -> Plan:
            return replace(plan, max_positions=config.max_model_len)

        return replace(
            self,
            config=config,
            plan=reaching(self.plan),
            ranks=tuple(map(reaching, self.ranks)),
            stages=tuple(stage.with_plans(reaching) for stage in self.stages),
        )

    @property
    def first_plans(self) -> tuple[Plan, ...]:
        """The plan that each stage runs, or its rank 0; where there are no stages, one alone."""
        return tuple(stage.parts[0] for stage in self.stages) or (self.own_plan(0),)

    @property
    def of_engine(self) -> EnginePlan:
        """The plan of the stage that the engine's own process has, the last; all of it where there
        are no stages."""
        if not self.stages:
            return self
        number = len(self.stages) - 1
        return self.of_stage(number, *stage_threads(self, number))

    def own_plan(self, rank: int) -> Plan:
        """The plan that ``rank`` runs: all of it, where there is one."""
        return self.ranks[rank] if self.ranks else self.plan


def step_limits(engine_plan: EnginePlan) -> Limits:
    """The limits with which the executor of ``engine_plan`` is bound."""
    config = engine_plan.config
    return Limits(
        num_blocks=config.num_blocks,
        max_tokens=config.max_num_batched_tokens,
        max_logit_rows=config.max_logit_rows,
        max_hidden_rows=config.max_num_batched_tokens,
        max_sequences=config.max_num_seqs,
        threads=config.threads,
        cpus=config.cpus,
        deterministic=config.deterministic,
        rows_per_sequence=config.rows_per_sequence,
        trees=config.speculative is not None or engine_plan.plan.feature_size > 0,
        blocks_are_put=config.kv_disk is not None,
        num_states=config.num_states,
        state_log=config.state_log,
    )


def state_limits(engine_plan: EnginePlan) -> StateLimits | None:
    """The state slots of ``engine_plan``; None where layers keep no states."""
    config, plan = engine_plan.config, engine_plan.plan
    if not plan.state_layers:
        return None
    interval = plan.state_interval(config.state_bytes)
    return StateLimits(config.num_states, config.max_num_seqs, interval)


def rank_limits(engine_plan: EnginePlan, rank: int) -> Limits:
    """The limits with which the executor of one of several ranks is bound: those of one process,
    with its part of the threads."""
    config = engine_plan.config
    count, cpus = divided(config.threads, config.cpus, config.tensor_parallel)[rank]
    return replace(step_limits(engine_plan), threads=count, cpus=cpus)


def stage_threads(engine_plan: EnginePlan, stage: int) -> tuple[int, tuple[int, ...]]:
    """The threads of a stage on this machine, those of all its ranks, and their CPUs."""
    config = engine_plan.config
    others = len(config.pipeline_stages)
    shares = divided(config.threads, config.cpus, config.pipeline_parallel - others)
    return shares[stage - others]
