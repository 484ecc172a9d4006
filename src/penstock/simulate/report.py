"""The document of a simulation, as ``--json`` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.service_level import Limit
from penstock.simulate.outcome import SimulatedRun


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """The configurations under one load, the best first."""

    load: str
    by: str
    """What they are ranked by."""
    configs: list[str]


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    version: int
    simulation: str
    """The model."""
    finished: str
    command: str
    partial: bool
    workload: dict[str, Any]
    slo: list[Limit]
    names: dict[str, dict[str, str]]
    """What other tools call the distributions."""
    runs: list[SimulatedRun]
    rankings: list[Ranked]


def rankings(loads: Sequence[tuple[str, Sequence[SimulatedRun]]], slo: bool) -> list[Ranked]:
    """Rank runs of each load: by goodput where there is an SLO, else by the median time of whole
    answers; those that fail requests behind those that do not."""
    by = "goodput" if slo else "median time of an answer"

    def key(run: SimulatedRun) -> tuple[float, float]:
        e2el = run.distributions.get("e2el")
        median = float("inf") if e2el is None else e2el.p50
        return (-(run.goodput_per_s or 0.0), median) if slo else (run.failed, median)

    return [
        Ranked(load=name, by=by, configs=[run.config for run in sorted(runs, key=key)])
        for name, runs in loads
    ]
