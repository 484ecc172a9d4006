"""The JSON document that every benchmark writes."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Mapping

import msgspec

from penstock.bench.machine import Machine
from penstock.bench.meter import linear_flops, weight_bytes_per_step
from penstock.engine.loader import EnginePlan
from penstock.plan.ops import Rows


def report(
    name: str,
    command: list[str],
    workload: Mapping[str, object],
    machine: Machine,
    result: Mapping[str, object],
    engine: EnginePlan | None,
    rows: int = 1,
) -> dict[str, object]:
    """A JSON document: the result's fields at the top, and all that is needed to repeat it.

    ``engine`` is what ran, whose model and options are added; None for a benchmark without one.
    ``rows``: tokens of the steps whose bytes of weights it tells.
    """
    document = {
        "benchmark": name,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["penstock", *command]),
        **result,
        "workload": dict(workload),
        "machine": msgspec.to_builtins(machine),
    }
    return document if engine is None else document | _of_engine(engine, rows)


def _of_engine(engine: EnginePlan, rows: int) -> dict[str, object]:
    spec, plan = engine.spec, engine.plan
    return {
        "weight_bytes_per_step": weight_bytes_per_step(plan, rows),
        "model": {
            "architecture": spec.architecture,
            "layers": len(spec.layers),
            "hidden_size": spec.hidden_size,
            "vocab_size": spec.vocab_size,
            "parameters": plan.num_parameters,
            "flops_per_token": linear_flops(plan, Rows.TOKENS),
            "flops_per_logit_row": linear_flops(plan, Rows.LOGITS),
        },
        "engine": msgspec.to_builtins(engine.config),
    }
