"""An engine made for measuring, and the report that every benchmark ends in."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from penstock.backends.registry import backend
from penstock.bench.machine import Machine, Speeds, describe_machine, measure_speeds
from penstock.bench.meter import MeteredExecutor, linear_flops, weight_bytes_per_step
from penstock.bench.progress import Progress
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import EnginePlan, load_models, plan_engine
from penstock.interface.loading import no_progress
from penstock.plan.ops import Rows

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


def report(
    session: Session,
    name: str,
    command: list[str],
    workload: Mapping[str, object],
    machine: Machine,
    result: Mapping[str, object],
    rows: int = 1,
) -> dict[str, object]:
    """A JSON document: the result's fields at the top, and all that is needed to repeat it.

    ``rows``: tokens of the steps whose bytes of weights it tells.
    """
    engine_plan = session.engine_plan
    spec = engine_plan.spec
    return {
        "benchmark": name,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["penstock", *command]),
        **result,
        "weight_bytes_per_step": session.weight_bytes_of(rows),
        "workload": dict(workload),
        "model": {
            "architecture": spec.architecture,
            "layers": len(spec.layers),
            "hidden_size": spec.hidden_size,
            "vocab_size": spec.vocab_size,
            "parameters": engine_plan.plan.num_parameters,
            "flops_per_token": linear_flops(engine_plan.plan, Rows.TOKENS),
            "flops_per_logit_row": linear_flops(engine_plan.plan, Rows.LOGITS),
        },
        "engine": msgspec.to_builtins(engine_plan.config),
        "machine": msgspec.to_builtins(machine),
    }
