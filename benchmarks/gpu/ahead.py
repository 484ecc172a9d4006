"""Kernels compiled by many processes before an engine is started, which then finds them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpu.kernels import compile_all
from gpu.results import Compiled
from penstock.backends.cuda.capability import Capability
from penstock.backends.cuda.variants import Variant, variants
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine, step_limits
from penstock.errors import PenstockError
from penstock.plan.ops import ExpertLinear, Linear
from penstock.plan.plan import Plan
from penstock.quant import GridScheme


def compile_ahead(
    configs: Sequence[EngineConfig],
    capability: Capability,
    seconds: float,
    report: Callable[[Compiled], None],
    processes: int | None = None,
    at_most: int | None = None,
) -> Compiled:
    """What engines of ``configs`` compile, the first one's kernels first; after ``seconds`` no more
    are begun. Results are kept in Triton's cache.

    ``processes``: as many as there are cores where not given. ``at_most``: so many kernels.
    """
    start = time.monotonic()
    found: dict[tuple[str, str], Variant] = {}
    problems: list[str] = []
    for config in configs:
        try:
            engine_plan = plan_engine(config)
        except PenstockError as error:  # its own job says it, too
            problems.append(str(error))
            continue
        plan = for_gpu(engine_plan.plan)
        for each in variants(plan, step_limits(engine_plan), capability):
            found.setdefault((each.name, each.key), each)
    wanted = list(found.values())[:at_most]
    processes = processes or os.cpu_count() or 1
    done = 0

    def compiled() -> Compiled:
        return Compiled(
            kernels=done,
            left_out=len(wanted) - done,
            seconds=time.monotonic() - start,
            processes=processes,
            problems=problems,
        )

    for outcome in compile_all(wanted, processes, seconds - (time.monotonic() - start)):
        done += 1
        if outcome.problem is not None:
            problems.append(f"{outcome.variant}: {outcome.problem}")
        if done % 32 == 0:
            report(compiled())
    return compiled()


def for_gpu(plan: Plan) -> Plan:
    """``plan`` with windows of 4 bits as GPUs have them: a trial without one plans for a CPU."""
    changed = []
    for op in plan.ops:
        scheme = op.scheme if isinstance(op, Linear | ExpertLinear) else None
        if isinstance(scheme, GridScheme) and isinstance(op, Linear | ExpertLinear):
            op = replace(op, scheme=replace(scheme, columns=32 if scheme.bits == 4 else 16))
        changed.append(op)
    return replace(plan, ops=tuple(changed))
