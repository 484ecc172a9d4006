"""Summaries of samples."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Mean, range and percentiles of one quantity, in the unit of its samples.

    Percentiles interpolate linearly between the two nearest samples.
    """

    count: int
    mean: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def summarize(samples: Sequence[float]) -> Summary | None:
    """Summarize samples; None if there are none."""
    if not samples:
        return None
    values = np.asarray(samples, np.float64)
    p50, p90, p95, p99 = np.percentile(values, [50, 90, 95, 99]).tolist()
    return Summary(
        count=len(values),
        mean=float(values.mean()),
        min=float(values.min()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(values.max()),
    )
