"""The stages of a pipeline one behind the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.engine.stages.columns import handed_on, own_step
from penstock.interface.executor import Executor, run
from penstock.interface.step import StepInput, StepResult
from penstock.peers.channel import Payload
from penstock.plan.stages import Stage


def run_staged(
    stages: Sequence[Stage], executors: Sequence[Executor], step: StepInput
) -> StepResult:
    """What the last stage makes of a step."""
    payload: Payload = np.empty(0, np.uint8)
    for stage, executor in zip(stages, executors, strict=True):
        result = run(executor, own_step(stage, step, payload))
        payload = np.concatenate([payload[:0], *handed_on(stage, result)])
    return result
