"""The decision of ``autoscaling.py`` as Ray Serve calls it.

Ray copies this module's code into its controller, and takes what it imports from there; so the
decision is imported where it is used, and is the installed one.
"""

from __future__ import annotations

import math
from typing import Any

from ray.serve.config import AutoscalingContext


class ScalingPolicy:
    """Asked by Ray's controller several times a second."""

    def __init__(self, sequences: float, goodput: float | None, window_s: float) -> None:
        from penstock.deploy.autoscaling import Goals

        self._goals = Goals(sequences, goodput, window_s)

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        from penstock.deploy.autoscaling import Figures, wanted

        metrics = ctx.aggregated_metrics or {}
        names = ("running", "waiting", "judged", "met")
        told = [
            Figures(*(metrics[name].get(replica, 0.0) for name in names))
            for replica in ctx.running_replicas
            if replica in metrics.get("running", {})
        ]
        up = ctx.last_scale_up_time
        since_up_s = math.inf if up is None else (ctx.current_time or up) - up
        silent = len(ctx.running_replicas) - len(told)
        number = wanted(self._goals, told, silent, ctx.target_num_replicas, since_up_s)
        return number, {}
