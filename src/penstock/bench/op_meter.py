"""Measures steps op by op, by an executor around one that can."""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.bench.meter import MeteredExecutor, StepProfile
from penstock.errors import ConfigError
from penstock.interface.executor import Executor, OpTime, Profiling
from penstock.interface.mask import TokenMask
from penstock.interface.sampler import Sampled, SamplingState
from penstock.interface.step import StepInput, StepResult
from penstock.models.spec import ModelSpec
from penstock.plan.costs import StepSize
from penstock.resolved_config import ResolvedConfig


class OpMeter(MeteredExecutor):
    """A :class:`MeteredExecutor` that also keeps what each op took, and sampling.

    The same ops run in the same order, so every bit is as without it; each takes two looks at the
    clock more. Of several ranks those of rank 0 are timed, and of a pipeline those of all stages,
    one step at a time.
    """

    fills_pipelines = False

    def __init__(self, executor: Executor, spec: ModelSpec, config: ResolvedConfig) -> None:
        super().__init__(executor, spec, config)
        if not isinstance(executor, Profiling):
            raise ConfigError(
                f"the {config.backend} backend does not time single ops; leave --ops out, or "
                "choose --backend cpu"
            )
        self._profiling = executor
        self._ops: Sequence[OpTime] = ()
        self._sampling = 0.0

    def compute(self, step: StepInput) -> StepResult:
        result, self._ops = self._profiling.profile(step)
        self._sampling = 0.0
        return result

    def profiled(self, step: StepInput) -> StepProfile:
        return StepProfile(StepSize.of(step), self._ops, self._sampling)

    def _draw(
        self,
        result: StepResult,
        rows: Sequence[int],
        states: Sequence[SamplingState],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> Sampled:
        start = time.perf_counter()
        sampled = super()._draw(result, rows, states, masks)
        self._sampling += time.perf_counter() - start
        return sampled
