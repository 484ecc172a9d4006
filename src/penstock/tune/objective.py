"""What makes one run better than another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, get_args

from penstock.errors import ConfigError
from penstock.profile import Figure, ObjectiveName, Served
from penstock.service_level import Limit
from penstock.simulate.outcome import SimulatedRun, figure_of

OBJECTIVES: Final = get_args(ObjectiveName)

Key = tuple[float, ...]
"""What is compared, the lowest being the best."""

_DIGITS: Final = 3
"""Figures that agree in so many digits are equal: the next one decides."""


def key_of(objective: ObjectiveName, served: Served) -> Key:
    """The objective, then tokens a second, then the longest answers, then refusals."""
    tokens = -_rounded(served.output_tokens_per_s)
    e2el = _rounded(served.e2el_p99, math.inf)
    failed = _rounded(served.failed_share)
    match objective:
        case "goodput":
            return (-_rounded(served.goodput_per_s), tokens, e2el, failed)
        case "throughput":
            return (tokens, e2el, failed)
        case "ttft":
            return (failed, _rounded(served.ttft_p99, math.inf), tokens)
        case "e2el":
            return (failed, e2el, tokens)


def served_of(run: SimulatedRun) -> Served:
    """The figures of a simulated run by which it is judged."""

    def p99(name: str) -> Figure | None:
        found = run.distributions.get(name)
        return None if found is None else Figure(mean=found.p99)

    return Served(
        goodput_per_s=None if run.goodput_per_s is None else Figure(mean=run.goodput_per_s),
        good_share=None if run.good_share is None else Figure(mean=run.good_share),
        failed_share=Figure(mean=run.failed / max(run.requests, 1)),
        output_tokens_per_s=Figure(mean=run.output_tokens_per_s),
        ttft_p99=p99("ttft"),
        tpot_p99=p99("tpot"),
        e2el_p99=p99("e2el"),
    )


def check_objective(objective: ObjectiveName, limits: Sequence[Limit]) -> None:
    """Raise ConfigError for an objective that needs limits, where there are none."""
    if objective == "goodput" and not limits:
        raise ConfigError(
            "--slo is missing: name limits of an answer, such as --slo ttft:500ms tpot:50ms, or "
            "another --objective (throughput, ttft, e2el)"
        )


def distance(run: SimulatedRun, limits: Sequence[Limit]) -> tuple[float, str]:
    """How many times a limit the median answer takes, and of which limit: that it misses most."""
    found = []
    for limit in limits:
        of = run.distributions.get(figure_of(limit))
        found.append((math.inf if of is None else of.p50 / limit.seconds, str(limit)))
    return max(found)


def _rounded(figure: Figure | None, otherwise: float = 0.0) -> float:
    value = otherwise if figure is None else figure.mean
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))
