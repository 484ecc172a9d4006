"""Time to first token against the length of the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.bench.least_squares import Floats, Line, line
from penstock.bench.load.charts.slopes import slope_title
from penstock.bench.load.load import Load
from penstock.bench.load.result import Measured, Result, evenly, loads_of
from penstock.bench.plots.figure import Figure, Panel, Table
from penstock.bench.plots.marks import axis, colored, data, layered, shaped
from penstock.bench.plots.words import Unit, evenly_taken, number, rounded, time_unit

_NAME: Final = "ttft-by-prompt"
_SUBJECT: Final = "Time to first token by length of the prompt"
_PANELS: Final = 6
_POINTS: Final = 1200
"""Points of a panel."""
_ALIKE: Final = 0.05
"""Prompts whose lengths are within this part of their mean have no slope worth drawing."""


@dataclass(frozen=True)
class _Cloud:
    """The answers of one load of one result."""

    measured: Measured
    tokens: Floats
    seconds: Floats
    fit: Line | None

    @classmethod
    def of(cls, measured: Measured) -> _Cloud:
        pairs = [
            (record.input_tokens, record.ttft_s)
            for record in measured.answers
            if record.input_tokens is not None and record.ttft_s is not None
        ]
        tokens, seconds = np.array(pairs, np.float64).reshape(-1, 2).T
        spread = len(tokens) > 0 and np.ptp(tokens) > _ALIKE * tokens.mean()
        return cls(measured, tokens, seconds, line(tokens, seconds) if spread else None)


def ttft_by_prompt(results: Sequence[Result]) -> Figure:
    """Every answer's first token by its prompt, with the line of least squares of each load."""
    clouds = [_Cloud.of(measured) for result in results for measured in result.loads]
    clouds = [cloud for cloud in clouds if len(cloud.tokens)]
    if not clouds:
        return Figure.without(
            _NAME, _SUBJECT, "No answer has both a first token and a prompt that was counted."
        )
    if not any(cloud.fit for cloud in clouds):
        return Figure.without(
            _NAME,
            _SUBJECT,
            "All prompts have nearly the same length; a slope needs several lengths, such as "
            "--input-len 100..2000 or --workload patterns.",
        )
    names = [result.name for result in results]
    unit = time_unit(float(cloud.seconds.max()) for cloud in clouds)
    shown = evenly([load for load in loads_of(results) if _of(clouds, load)], _PANELS)
    panels = [
        Panel(str(load) if len(shown) > 1 else "", _spec(_of(clouds, load), names, unit))
        for load in shown
    ]
    total = sum(len(cloud.tokens) for cloud in clouds)
    drawn = sum(
        min(len(c.tokens), _share(clouds, load)) for load in shown for c in _of(clouds, load)
    )
    sample = f", of which {drawn:,} are drawn, evenly taken" if drawn < total else ""
    return Figure(
        _NAME,
        _SUBJECT,
        slope_title(
            "1,000 more prompt tokens",
            "to the time to first token",
            [(c.measured, c.fit) for c in clouds if c.fit],
        ),
        f"Points are answers (n = {total:,}{sample}), lines are least squares of all of them. "
        "Intervals are of 95 %, robust against unequal scatter. Waiting in the server's queue "
        "is part of the time.",
        panels,
        names,
        _table(clouds),
    )


def _of(clouds: Sequence[_Cloud], load: Load) -> list[_Cloud]:
    return [cloud for cloud in clouds if cloud.measured.load == load]


def _share(clouds: Sequence[_Cloud], load: Load) -> int:
    """How many points of a panel each result may have."""
    return _POINTS // len(_of(clouds, load))


def _spec(clouds: Sequence[_Cloud], names: Sequence[str], unit: Unit) -> Mapping[str, object]:
    points = [
        {
            "x": float(cloud.tokens[i]),
            "y": unit.of(float(cloud.seconds[i])),
            "series": cloud.measured.name,
        }
        for cloud in clouds
        for i in evenly_taken(len(cloud.tokens), _POINTS // len(clouds))
    ]
    ends = [
        {"x": x, "y": rounded(unit.per_base * cloud.fit.at(x)), "series": cloud.measured.name}
        for cloud in clouds
        if cloud.fit is not None
        for x in (float(cloud.tokens.min()), float(cloud.tokens.max()))
    ]
    x = axis("x", "prompt tokens")
    y = axis("y", f"time to first token, {unit.name}")
    color = colored(names)
    return {
        "layer": layered(
            {
                **data(points),
                "mark": {"type": "point", "filled": True, "size": 22, "opacity": 0.45},
                "encoding": {"x": x, "y": y, "color": color, "shape": shaped(names)},
            },
            {
                **data(ends),
                "mark": {"type": "line", "strokeWidth": 2.5, "clip": True},
                "encoding": {"x": x, "y": y, "color": color},
            },
        )
    }


def _table(clouds: Sequence[_Cloud]) -> Table:
    rows = []
    for cloud in clouds:
        fit = cloud.fit
        slope = (
            ("-", "-", "-")
            if fit is None
            else (
                number(fit.slope * 1e6),
                f"{number(fit.low * 1e6)} to {number(fit.high * 1e6)}",
                number(fit.intercept * 1e3),
            )
        )
        lengths = f"{cloud.tokens.min():,.0f} to {cloud.tokens.max():,.0f}"
        rows.append(
            (
                cloud.measured.name,
                str(cloud.measured.load),
                f"{len(cloud.tokens):,}",
                lengths,
                *slope,
                number(float(np.median(cloud.seconds)) * 1e3),
            )
        )
    return Table(
        (
            "result",
            "load",
            "answers",
            "prompt tokens",
            "ms per 1,000 tokens",
            "interval",
            "at 0 tokens, ms",
            "median TTFT, ms",
        ),
        rows,
    )
