"""What comes of more load: goodput, and latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.bench.load.result import Estimate, Measured, Result, shown
from penstock.bench.plots.figure import Figure, Panel, Table
from penstock.bench.plots.marks import axis, colored, data, shaped
from penstock.bench.plots.words import Unit, duration, number, plain_number, rounded, time_unit
from penstock.service_level import level_of

_GOODPUT: Final = "goodput"
_LATENCY: Final = "latency-by-load"
_GOODPUT_SUBJECT: Final = "Goodput by load"
_LATENCY_SUBJECT: Final = "Latency by load"
_FEW: Final = "It needs at least two loads: --rate 1,2,4 or --concurrency 1,4,16 measures several."
_NONE_WHOLE: Final = "No answer came whole."
_LATENCIES: Final = (
    ("ttft", "time to first token"),
    ("tpot", "time per output token"),
    ("e2el", "time of a whole answer"),
)


@dataclass(frozen=True)
class _Sweep:
    """Loads that stand on one axis."""

    points: Sequence[tuple[float, Measured]]
    rates: bool
    """Whether these are rates, or numbers of conversations at once."""
    left_out: Sequence[Measured]
    """Those that have no place on this axis."""

    @classmethod
    def of(cls, results: Sequence[Result]) -> _Sweep:
        """The rates, where there are any, else the numbers at once."""
        every = [measured for result in results for measured in result.loads]
        rates = any(measured.load.rate is not None for measured in every)
        points, left_out = [], []
        for measured in every:
            at = measured.load.rate if rates else measured.load.concurrency
            if at is None:
                left_out.append(measured)
            else:
                points.append((float(at), measured))
        return cls(points, rates, left_out)

    @property
    def missing(self) -> str:
        """A sentence on what is left out; empty where nothing is."""
        named = "; ".join(f"{measured.name}, {measured.load}" for measured in self.left_out)
        what = "rate" if self.rates else "number of conversations at once"
        return f" Left out, for want of a {what}: {named}." if named else ""

    @property
    def title(self) -> str:
        return (
            "rate offered, conversations/s" if self.rates else "conversations that are open at once"
        )

    @property
    def long(self) -> bool:
        """Whether there are two loads at least."""
        return len({at for at, _ in self.points}) > 1

    def words(self, at: float) -> str:
        return f"{plain_number(at)}/s" if self.rates else f"{plain_number(at)} at once"

    def axis(self) -> Mapping[str, Any]:
        return axis("x", self.title, scale={"zero": self.rates, "nice": True})


def goodput(results: Sequence[Result]) -> Figure:
    """Requests that were complete, and complete within the service level, by load."""
    sweep = _Sweep.of(results)
    if not sweep.long:
        return Figure.without(_GOODPUT, _GOODPUT_SUBJECT, _FEW)
    levels = list(dict.fromkeys(level_of(r.report.slo) for r in results))
    level = levels[0] if len(levels) == 1 else ""
    names = [result.name for result in results]
    rows: list[dict[str, Any]] = []
    best: dict[str, tuple[float, float]] = {}
    table = []
    for at, measured in sweep.points:
        complete = measured.estimate("completed_per_s")
        good = measured.estimate("goodput_per_s") if level else None
        share = measured.estimate("good_share") if level else None
        for kind, found in (("complete", complete), ("good", good)):
            if found is not None:
                rows.append({"x": at, "kind": kind, "series": measured.name, **_ends(found, 1.0)})
        counted = good or complete
        if counted is not None and counted.value > best.get(measured.name, (-1.0, 0.0))[0]:
            best[measured.name] = counted.value, at
        table.append(
            (
                measured.name,
                str(measured.load),
                "-" if complete is None else shown(complete),
                "-" if good is None else shown(good),
                "-" if share is None else f"{share.value:.1%}",
            )
        )
    if not rows:
        return Figure.without(_GOODPUT, _GOODPUT_SUBJECT, _NONE_WHOLE)
    within = f"Within {level}, " if level else "Whatever the latency, "
    said = [
        f"{name if len(best) > 1 else 'the server'} completes {number(rate)} requests/s at the "
        f"most (at {sweep.words(at)})"
        for name, (rate, at) in best.items()
    ]
    missing = (
        ""
        if level
        else (
            " No goodput: the results have different service levels."
            if len(levels) > 1
            else " No goodput: the results have no service level (--slo ttft:500ms tpot:30ms)."
        )
    )
    return Figure(
        _GOODPUT,
        _GOODPUT_SUBJECT,
        within + "; ".join(said),
        ("Solid: answers within the service level; dashed: all whole answers. " if level else "")
        + ("The straight dotted line is what was offered. " if sweep.rates else "")
        + "Lines at marks are intervals of 95 % over repeats, where there are such."
        + sweep.missing
        + missing,
        [Panel("", _goodput_spec(rows, sweep, names, bool(level)), 300)],
        names,
        Table(("result", "load", "complete/s", "good/s", "good"), table),
    )


def _goodput_spec(
    rows: Sequence[Mapping[str, Any]], sweep: _Sweep, names: Sequence[str], level: bool
) -> Mapping[str, Any]:
    x, y = sweep.axis(), axis("y", "requests/s")
    kinds = {"domain": ["good", "complete"], "range": [[1, 0], [5, 4]]}
    dash = {"field": "kind", "type": "nominal", "scale": kinds, "legend": None}
    layers = _lines(rows, x, y, names, dash if level else {"value": [1, 0]}, "kind")
    if sweep.rates:
        most = max(at for at, _ in sweep.points)
        offered: list[Mapping[str, object]] = [{"x": 0, "y": 0}, {"x": most, "y": most}]
        line = {"mark": {"type": "line", "style": ["line", "reference"]}}
        layers.insert(0, {**data(offered), **line, "encoding": {"x": x, "y": y}})
    return {"layer": layers}


def latency_by_load(results: Sequence[Result]) -> Figure:
    """Medians and 99th percentiles of latencies by load."""
    sweep = _Sweep.of(results)
    if not sweep.long:
        return Figure.without(_LATENCY, _LATENCY_SUBJECT, _FEW)
    names = [result.name for result in results]
    panels, table = [], []
    for quantity, title in _LATENCIES:
        found = [
            (at, measured, part, estimate)
            for part in ("p50", "p99")
            for at, measured in sweep.points
            if (estimate := measured.estimate(f"{quantity}.{part}")) is not None
        ]
        if not found:
            continue
        unit = time_unit(estimate.value for *_, estimate in found)
        rows = [
            {"x": at, "kind": part, "series": measured.name, **_ends(estimate, unit.per_base)}
            for at, measured, part, estimate in found
        ]
        panels.append(Panel("", _latency_spec(rows, sweep, names, title, unit)))
        table += [
            (title, part, each.name, str(each.load), shown(estimate, 1e3))
            for _, each, part, estimate in found
        ]
    if not panels:
        return Figure.without(_LATENCY, _LATENCY_SUBJECT, _NONE_WHOLE)
    return Figure(
        _LATENCY,
        _LATENCY_SUBJECT,
        _latency_title(sweep, names),
        "Solid: medians; dashed: 99th percentiles. Lines at marks are intervals of 95 %: over "
        "repeats, or of one run by a bootstrap over its requests, if these are enough."
        + sweep.missing,
        panels,
        names,
        Table(("quantity", "part", "result", "load", "ms"), table),
    )


def _latency_title(sweep: _Sweep, names: Sequence[str]) -> str:
    """What more load did to each result, from the least to the most at which answers came."""
    said = []
    for name in names:
        found = [
            (at, estimate.value)
            for at, measured in sweep.points
            if measured.name == name and (estimate := measured.estimate("ttft.p50")) is not None
        ]
        if not found:
            continue
        least, most = (f"{duration(s)} ({sweep.words(at)})" for at, s in (min(found), max(found)))
        whose = f"of {name} " if len(names) > 1 else ""
        said.append(whose + (f"is {least}" if least == most else f"goes from {least} to {most}"))
    if not said:
        return "No answer has a time to first token"
    return f"The median time to first token {'; '.join(said)}"


def _latency_spec(
    rows: Sequence[Mapping[str, Any]], sweep: _Sweep, names: Sequence[str], title: str, unit: Unit
) -> Mapping[str, Any]:
    kinds = {"domain": ["p50", "p99"], "range": [[1, 0], [5, 4]]}
    dash = {"field": "kind", "type": "nominal", "scale": kinds, "legend": None}
    y = axis("y", f"{title}, {unit.name}")
    return {"layer": _lines(rows, sweep.axis(), y, names, dash, "kind")}


def _lines(
    rows: Sequence[Mapping[str, Any]],
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    names: Sequence[str],
    dash: Mapping[str, Any],
    detail: str,
) -> list[Mapping[str, Any]]:
    """Lines with marks and intervals."""
    color = colored(names)
    kind = {"field": detail, "type": "nominal"}
    tooltip = [{"field": name} for name in ("series", detail, "x", "y", "low", "high")]
    return [
        {
            **data(rows),
            "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6},
            "encoding": {
                "x": x,
                "y": {**y, "field": "low"},
                "y2": {"field": "high"},
                "color": color,
            },
        },
        {
            **data(rows),
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, "color": color, "strokeDash": dash, "detail": kind},
        },
        {
            **data(rows),
            "mark": {"type": "point", "filled": True, "size": 55},
            "encoding": {
                "x": x,
                "y": y,
                "color": color,
                "shape": shaped(names),
                "tooltip": tooltip,
            },
        },
    ]


def _ends(estimate: Estimate, times: float) -> dict[str, float]:
    """A value, and the ends of its interval: the value itself where there is none."""
    interval, value = estimate.interval, rounded(estimate.value * times)
    if interval is None:
        return {"y": value, "low": value, "high": value}
    return {
        "y": value,
        "low": rounded(max(0.0, interval.low) * times),
        "high": rounded(interval.high * times),
    }
