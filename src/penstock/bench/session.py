"""An engine made for measuring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.backends.registry import backend
from penstock.bench.machine import Machine, Speeds, describe_machine, measure_speeds
from penstock.bench.meter import MeteredExecutor, weight_bytes_per_step
from penstock.bench.progress import Progress
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import EnginePlan, load_models, plan_engine
from penstock.interface.loading import no_progress

R = TypeVar("R")


@dataclass(frozen=True)
class Session:
    """A loaded engine whose executor is measured."""

    engine_plan: EnginePlan
    core: EngineCore
    meter: MeteredExecutor

    @classmethod
    def open(
        cls,
        config: EngineConfig,
        meter_of: type[MeteredExecutor] = MeteredExecutor,
        progress: Progress | None = None,
    ) -> Session:
        """Load what ``config`` asks for; raises what :meth:`EngineCore.start` raises.

        ``meter_of``: what is measured of its steps, such as every op (``OpMeter``).
        """
        engine_plan = plan_engine(config)
        told = no_progress if progress is None else progress.load
        models = load_models(engine_plan, keeping="never", progress=told)
        try:
            meter = meter_of(models.executor, engine_plan.spec, engine_plan.config)
        except BaseException:
            models.executor.close()
            raise
        return cls(engine_plan, EngineCore.of(replace(models, executor=meter)), meter)

    @property
    def vocab_size(self) -> int:
        return self.engine_plan.spec.vocab_size

    @property
    def max_model_len(self) -> int:
        return self.engine_plan.config.max_model_len

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a step of one token reads."""
        return self.weight_bytes_of(1)

    def weight_bytes_of(self, rows: int) -> int:
        """Bytes of weights that a step of ``rows`` tokens reads."""
        return weight_bytes_per_step(self.engine_plan.plan, rows)

    def measured(self, benchmark: Callable[[], R]) -> tuple[R, Machine]:
        """Run ``benchmark`` between two measurements of the machine; the better one counts."""
        threads = self.engine_plan.config.threads
        if backend(self.engine_plan.config.backend).on_gpu:
            speeds = Speeds(unmeasured="there is no measurement of a GPU yet")
            return benchmark(), describe_machine(speeds, threads)
        before = measure_speeds(threads)
        result = benchmark()
        return result, describe_machine(before.best(measure_speeds(threads)), threads)

    def close(self) -> None:
        self.core.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
