"""How long whole answers take, as box plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.bench.load.result import Measured, Result, evenly, loads_of
from penstock.bench.plots.figure import Figure, Panel, Table
from penstock.bench.plots.marks import axis, category, colored, data
from penstock.bench.plots.words import Unit, duration, number, time_unit

_NAME: Final = "completion"
_SUBJECT: Final = "Time of whole answers"
_LOADS: Final = 10
_PATTERNS: Final = 8
_PARTS: Final = ("p5", "p25", "p50", "p75", "p95")
_FAR: Final = 40.0
"""Where the longest times are so many times the shortest, the axis is logarithmic."""
_ROW: Final = 17
"""Pixels of a box, with the space to the next."""


@dataclass(frozen=True)
class Box:
    """Times of whole answers, seconds."""

    name: str
    """The result's."""
    load: str
    pattern: str
    """The pattern of its requests; empty where these have none."""
    count: int
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float
    mean: float

    @classmethod
    def of(cls, measured: Measured, pattern: str) -> Box | None:
        """The box of one load of one result; None where nothing of the pattern came whole."""
        seconds = [
            time
            for record in measured.answers
            if (time := record.e2el_s) is not None and pattern in ("", record.pattern)
        ]
        if not seconds:
            return None
        p5, p25, p50, p75, p95 = np.percentile(seconds, [5, 25, 50, 75, 95]).tolist()
        count, mean = len(seconds), float(np.mean(seconds))
        load = str(measured.load)
        return cls(measured.name, load, pattern, count, p5, p25, p50, p75, p95, mean)


def completion(results: Sequence[Result]) -> Figure:
    """A box for each load of each result; with patterns, a panel for each of these."""
    names = [result.name for result in results]
    every = loads_of(results)
    loads = evenly(every, _LOADS)
    chosen = [m for load in loads for result in results for m in result.loads if m.load == load]
    patterns = sorted({r.pattern for m in chosen for r in m.answers if r.pattern is not None})
    kinds = patterns if 1 < len(patterns) <= _PATTERNS else [""]
    panels, boxes = [], []
    for pattern in kinds:
        inside = [box for m in chosen if (box := Box.of(m, pattern)) is not None]
        if inside:
            panels.append(_panel(inside, names, [str(load) for load in loads]))
            boxes.append(inside)
    if not boxes:
        return Figure.without(_NAME, _SUBJECT, "No answer came whole.")
    left = len(every) - len(loads)
    all_boxes = [box for inside in boxes for box in inside]
    return Figure(
        _NAME,
        _SUBJECT,
        _title(all_boxes),
        "Boxes hold the middle half of the answers, with a line at the median and a dot at the "
        "mean; whiskers go from 5 % to 95 %. From the sending of the request to the last chunk "
        f"with a token. n = {sum(box.count for box in all_boxes):,} answers."
        + (" Where times are far apart, the axis is logarithmic." if any(map(_far, boxes)) else "")
        + (f" {left} further loads are left out, evenly." if left else ""),
        panels,
        names,
        _table(all_boxes),
    )


def _far(boxes: Sequence[Box]) -> bool:
    return max(box.p95 for box in boxes) > _FAR * max(1e-6, min(box.p5 for box in boxes))


def _title(boxes: Sequence[Box]) -> str:
    fastest, slowest = min(boxes, key=lambda b: b.p50), max(boxes, key=lambda b: b.p50)
    several = len({box.name for box in boxes}) > 1

    def where(box: Box) -> str:
        parts = (box.name if several else "", box.load, box.pattern)
        return f" ({', '.join(part for part in parts if part)})"

    if fastest is slowest:
        return f"Half of the answers are complete within {duration(fastest.p50)}"
    return (
        f"The median answer is complete after {duration(fastest.p50)}{where(fastest)} to "
        f"{duration(slowest.p50)}{where(slowest)}"
    )


def _panel(boxes: Sequence[Box], names: Sequence[str], loads: Sequence[str]) -> Panel:
    unit = time_unit(box.p95 for box in boxes)
    height = max(90, (_ROW * len(names) + 12) * len(loads))
    return Panel(boxes[0].pattern, _spec(boxes, names, loads, unit), height)


def _spec(
    boxes: Sequence[Box], names: Sequence[str], loads: Sequence[str], unit: Unit
) -> Mapping[str, object]:
    rows = [
        {
            "load": box.load,
            "series": box.name,
            "n": box.count,
            **{part: unit.of(getattr(box, part)) for part in _PARTS},
            "mean": unit.of(box.mean),
        }
        for box in boxes
    ]
    title = f"time of a whole answer, {unit.name}"
    scale = {"type": "log"} if _far(boxes) else {"zero": True}
    y = category("load", loads)
    tooltip = [
        {"field": field, "title": field} for field in ("series", "load", "n", *_PARTS, "mean")
    ]
    across = {"y": y, "yOffset": category("series", names), "color": colored(names)}

    def at(field: str) -> Mapping[str, object]:
        return axis(field, title, scale=scale)

    return {
        **data(rows),
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {**across, "x": at("p5"), "x2": {"field": "p95"}},
            },
            {
                "mark": {"type": "bar", "fillOpacity": 0.3, "strokeWidth": 1.5, "size": 13},
                "encoding": {
                    **across,
                    "x": at("p25"),
                    "x2": {"field": "p75"},
                    "stroke": colored(names),
                    "tooltip": tooltip,
                },
            },
            {
                "mark": {"type": "tick", "style": ["tick", "ink"], "thickness": 2.5, "size": 13},
                "encoding": {"y": y, "yOffset": across["yOffset"], "x": at("p50")},
            },
            {
                "mark": {"type": "point", "style": ["point", "ink"], "filled": True, "size": 12},
                "encoding": {"y": y, "yOffset": across["yOffset"], "x": at("mean")},
            },
        ],
    }


def _table(boxes: Sequence[Box]) -> Table:
    patterns = any(box.pattern for box in boxes)
    rows = [
        (
            *((box.pattern,) if patterns else ()),
            box.name,
            box.load,
            f"{box.count:,}",
            *(number(getattr(box, part) * 1e3) for part in (*_PARTS, "mean")),
        )
        for box in boxes
    ]
    header = ("result", "load", "answers", *(f"{part}, ms" for part in (*_PARTS, "mean")))
    return Table((*(("pattern",) if patterns else ()), *header), rows)
