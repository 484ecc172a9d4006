"""Time between tokens against the position in the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.bench.least_squares import Floats, Line, line
from penstock.bench.load.charts.slopes import slope_title
from penstock.bench.load.load import Load
from penstock.bench.load.record import RequestRecord
from penstock.bench.load.result import Measured, Result, evenly, loads_of
from penstock.bench.plots.figure import Figure, Panel, Table
from penstock.bench.plots.marks import axis, colored, data, layered, shaped
from penstock.bench.plots.words import Unit, number, rounded, time_unit

_NAME: Final = "itl-by-position"
_SUBJECT: Final = "Time between tokens by position"
_PANELS: Final = 6
_BINS: Final = 24
_HOLE: Final = 1 / 8
"""The part of the range of positions that is a hole where no gap lies in it."""
_MOST: Final = 2_000_000
"""Gaps of one load that are kept; of more, those of every k-th answer."""


@dataclass(frozen=True)
class _Bin:
    """Gaps at neighbouring positions."""

    position: float
    """Their mean."""
    count: int
    mean: float
    p10: float
    p50: float
    p90: float
    part: int
    """How many holes in the positions are before it."""


@dataclass(frozen=True)
class _Course:
    """How gaps go on along the context, at one load of one result. Seconds."""

    measured: Measured
    bins: Sequence[_Bin]
    fit: Line | None
    gaps: int
    answers: int
    taken: int
    """How many of the answers have their gaps counted."""

    @classmethod
    def of(cls, measured: Measured) -> _Course | None:
        answers = [record for record in measured.answers if len(record.gaps_us) > 1]
        every = max(1, -(-sum(len(r.gaps_us) - 1 for r in answers) // _MOST))
        taken = answers[::every]
        if not taken:
            return None
        seconds = np.concatenate([np.array(r.gaps_us[1:], np.float64) for r in taken]) / 1e6
        positions = np.concatenate([_positions(record) for record in taken])
        owner = np.repeat(np.arange(len(taken)), [len(r.gaps_us) - 1 for r in taken])
        fit = line(positions, seconds, owner)
        bins = _bins(positions, seconds)
        return cls(measured, bins, fit, len(seconds), len(answers), len(taken))


def _positions(record: RequestRecord) -> Floats:
    """How many tokens stood before each chunk but the first; those of an answer are spread evenly
    over its chunks, since servers do not say how many a chunk has."""
    chunks = len(record.gaps_us)
    before = record.input_tokens or record.input_tokens_asked or 0
    places = np.arange(1, chunks, dtype=np.float64)
    return before + places * (record.tokens / chunks)


def _bins(positions: Floats, seconds: Floats) -> list[_Bin]:
    """About as many gaps in each, but none across a hole in the positions."""
    edges = np.quantile(positions, np.linspace(0, 1, _BINS + 1))
    distinct = np.unique(positions)
    beyond = distinct[1:][np.diff(distinct) > _HOLE * np.ptp(distinct)]
    edges = np.unique(np.concatenate([edges[:-1], beyond]))
    which = np.searchsorted(edges, positions, side="right") - 1
    found = []
    for place in np.unique(which):
        inside, at = seconds[which == place], positions[which == place]
        p10, p50, p90 = np.percentile(inside, [10, 50, 90]).tolist()
        part = int((beyond <= at[0]).sum())
        mean = float(inside.mean())
        found.append(_Bin(float(at.mean()), len(inside), mean, p10, p50, p90, part))
    return found


def itl_by_position(results: Sequence[Result]) -> Figure:
    """The mean gap by position, the range of the middle eight tenths, and the line through all."""
    found = [_Course.of(measured) for result in results for measured in result.loads]
    courses = [course for course in found if course is not None]
    if not courses:
        return Figure.without(
            _NAME,
            _SUBJECT,
            "No answer has two chunks with tokens: there is no time between them.",
        )
    names = [result.name for result in results]
    unit = time_unit(each.p90 for course in courses for each in course.bins)
    shown = evenly([load for load in loads_of(results) if _of(courses, load)], _PANELS)
    panels = [
        Panel(str(load) if len(shown) > 1 else "", _spec(_of(courses, load), names, unit))
        for load in shown
    ]
    gaps = sum(course.gaps for course in courses)
    left = sum(course.answers - course.taken for course in courses)
    sample = f"; of {left:,} further answers they are not counted" if left else ""
    fits = [(course.measured, course.fit) for course in courses if course.fit is not None]
    return Figure(
        _NAME,
        _SUBJECT,
        slope_title("1,000 more tokens of context", "to the time between chunks", fits)
        if fits
        else "Time between chunks by position in the context",
        f"Marks are means of up to {_BINS} groups of neighbouring positions, areas the middle 80 % "
        "of their gaps; lines are least squares of all gaps. "
        f"n = {gaps:,} gaps between chunks{sample}. A position is the number of tokens before a "
        "chunk, prompt included. Intervals of 95 % count answers, not gaps. An answer's neighbours "
        "in the batch change with time, so this is more than the model's own drift.",
        panels,
        names,
        _table(courses),
    )


def _of(courses: Sequence[_Course], load: Load) -> list[_Course]:
    return [course for course in courses if course.measured.load == load]


def _spec(courses: Sequence[_Course], names: Sequence[str], unit: Unit) -> Mapping[str, object]:
    groups = [
        {
            "x": rounded(each.position),
            "y": unit.of(each.mean),
            "low": unit.of(each.p10),
            "high": unit.of(each.p90),
            "n": each.count,
            "part": each.part,
            "series": course.measured.name,
        }
        for course in courses
        for each in course.bins
    ]
    ends = [
        {"x": rounded(x), "y": rounded(unit.per_base * course.fit.at(x)), "series": name}
        for course in courses
        if course.fit is not None
        for name in (course.measured.name,)
        for x in (course.bins[0].position, course.bins[-1].position)
    ]
    x = axis("x", "tokens before it, prompt included", scale={"zero": False})
    y = axis("y", f"time between chunks, {unit.name}")
    color = colored(names)
    tooltip = [
        {"field": "series", "title": "result"},
        {"field": "x", "title": "position"},
        {"field": "y", "title": f"mean, {unit.name}"},
        {"field": "low", "title": f"p10, {unit.name}"},
        {"field": "high", "title": f"p90, {unit.name}"},
        {"field": "n", "title": "gaps"},
    ]
    return {
        "layer": layered(
            {
                **data(groups),
                "mark": {"type": "area", "opacity": 0.14},
                "encoding": {
                    "x": x,
                    "y": {**y, "field": "low"},
                    "y2": {"field": "high"},
                    "color": color,
                    "detail": {"field": "part", "type": "nominal"},
                },
            },
            {
                **data(groups),
                "mark": {"type": "point", "filled": True, "size": 30},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": color,
                    "shape": shaped(names),
                    "tooltip": tooltip,
                },
            },
            {
                **data(ends),
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"x": x, "y": y, "color": color},
            },
        )
    }


def _table(courses: Sequence[_Course]) -> Table:
    rows = []
    for course in courses:
        fit, bins = course.fit, course.bins
        slope = (
            ("-", "-")
            if fit is None
            else (
                number(fit.slope * 1e6),
                f"{number(fit.low * 1e6)} to {number(fit.high * 1e6)}",
            )
        )
        rows.append(
            (
                course.measured.name,
                str(course.measured.load),
                f"{course.taken:,}",
                f"{course.gaps:,}",
                f"{bins[0].position:,.0f} to {bins[-1].position:,.0f}",
                number(bins[0].mean * 1e3),
                number(bins[-1].mean * 1e3),
                *slope,
            )
        )
    header = ("result", "load", "answers", "gaps", "positions", "first group's mean, ms")
    return Table((*header, "last group's mean, ms", "ms per 1,000 tokens", "interval"), rows)
