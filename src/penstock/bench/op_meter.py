"""Measures steps op by op, by an executor around one that can."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from penstock.bench.meter import MeteredExecutor, OpTime, StepProfile
from penstock.config import ResolvedConfig
from penstock.errors import ConfigError
from penstock.interface.executor import Executor
from penstock.interface.mask import TokenMask
from penstock.interface.sampler import Sampled, SamplingState
from penstock.interface.step import StepInput, StepResult
from penstock.models.spec import ModelSpec
from penstock.plan.costs import StepSize


@runtime_checkable
class Profiling(Protocol):
    """An executor that can time its ops."""

    def profile(self, step: StepInput) -> tuple[StepResult, list[tuple[float, float]]]:
        """What the step gives, and of each op the fields of an ``OpTime``."""
        ...


class OpMeter(MeteredExecutor):
    """A :class:`MeteredExecutor` that also keeps what each op took, and sampling.

    The same ops run in the same order, so every bit is as without it; each takes two looks at the
    clock more.
    """

    def __init__(self, executor: Executor, spec: ModelSpec, config: ResolvedConfig) -> None:
        super().__init__(executor, spec, config)
        if config.tensor_parallel > 1:
            raise ConfigError(
                "ops of several ranks are not timed yet; leave --ops or --tensor-parallel out"
            )
        if config.pipeline_parallel > 1:
            raise ConfigError(
                "ops of several stages are not timed yet; leave --ops or --pipeline-parallel out"
            )
        if not isinstance(executor, Profiling):
            raise ConfigError(
                f"the {config.backend} backend does not time single ops; leave --ops out, or "
                "choose --backend cpu"
            )
        self._profiling = executor
        self._ops: list[tuple[float, float]] = []
        self._sampling = 0.0

    def compute(self, step: StepInput) -> StepResult:
        result, self._ops = self._profiling.profile(step)
        self._sampling = 0.0
        return result

    def profiled(self, step: StepInput) -> StepProfile:
        return StepProfile(
            StepSize.of(step), [OpTime(*times) for times in self._ops], self._sampling
        )

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
