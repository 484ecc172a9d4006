"""Throughput against latency, and which loads no other load is better than."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.bench.load.load import Load
from penstock.bench.load.quality import Quality
from penstock.bench.load.result import Measured, Result
from penstock.bench.plots.figure import Figure, Panel, Table
from penstock.bench.plots.marks import axis, colored, data, shaped
from penstock.bench.plots.words import Unit, number, rounded, time_unit

_NAME: Final = "frontier"
_SUBJECT: Final = "Throughput against latency"
_LATENCIES: Final = (
    ("ttft.p50", "median time to first token"),
    ("tpot.p50", "median time per output token"),
)
"""A panel for each; the second tells frontier and title where it is there."""


@dataclass(frozen=True)
class Option:
    """One load of one result as a choice: less latency, more throughput and less of the quality's
    measure are better."""

    measured: Measured
    latency: float
    throughput: float
    quality: Quality | None

    @property
    def label(self) -> str:
        return _label(self.measured.name, self.quality)

    def beats(self, other: Option) -> bool:
        """Whether it is as good in everything, and better in something. Quality counts where both
        have it, of one measure."""
        ours, theirs = self._costs(other)
        return all(a <= b for a, b in zip(ours, theirs, strict=True)) and ours != theirs

    def _costs(self, other: Option) -> tuple[tuple[float, ...], tuple[float, ...]]:
        ours, theirs = (self.latency, -self.throughput), (other.latency, -other.throughput)
        a, b = self.quality, other.quality
        if a is None or b is None or a.measure != b.measure:
            return ours, theirs
        return (*ours, a.value), (*theirs, b.value)


def _label(name: str, quality: Quality | None) -> str:
    return name if quality is None else f"{name} ({quality})"


def _short(load: Load) -> str:
    """A load as it stands at a mark."""
    return f"{load.rate:g}/s" if load.rate is not None else str(load.concurrency or "")


def frontier(options: Sequence[Option]) -> list[Option]:
    """Those that no other option beats."""
    return [each for each in options if not any(other.beats(each) for other in options)]


def throughput_by_latency(results: Sequence[Result]) -> Figure:
    """Each load of each result, and the frontier of all."""
    found = {name: _options(results, name) for name, _ in _LATENCIES}
    drawn = [(name, title) for name, title in _LATENCIES if len(found[name]) > 1]
    if not drawn:
        return Figure.without(
            _NAME,
            _SUBJECT,
            "It needs at least two loads, or two results: --concurrency 1,4,16 measures several.",
        )
    names = [_label(result.name, result.quality) for result in results]
    measures = {r.quality.measure for r in results if r.quality is not None}
    panels = [_panel(found[name], names, title) for name, title in drawn]
    if measures:
        panels.append(_quality_panel(found[drawn[-1][0]], names, sorted(measures)))
    last, title = drawn[-1]
    best = frontier(found[last])
    return Figure(
        _NAME,
        _SUBJECT,
        _title(best, title, len(results) > 1),
        "Each mark is a load, joined from the lightest to the heaviest; numbers at marks are "
        "conversations at once, or rates. The dotted line is the frontier of both axes. Filled "
        "marks are on the frontier: no other has at least their throughput at no more latency"
        + (" and no worse quality" if measures else "")
        + ". How many answers each load has, and the intervals, are in the table of figures.",
        panels,
        names,
        _table(found, drawn, sorted(measures)),
    )


def _options(results: Sequence[Result], latency: str) -> list[Option]:
    options = []
    for result in results:
        for measured in result.loads:
            time, rate = measured.estimate(latency), measured.estimate("output_tokens_per_s")
            if time is not None and rate is not None:
                options.append(Option(measured, time.value, rate.value, result.quality))
    return options


def _title(best: Sequence[Option], latency: str, several: bool) -> str:
    quick = min(best, key=lambda option: option.latency)
    much = max(best, key=lambda option: option.throughput)

    def where(option: Option) -> str:
        name = f"{option.measured.name}, " if several else ""
        return f"({name}{option.measured.load})"

    unit = time_unit([much.latency])
    if quick is much:
        return (
            f"No load has less latency or more throughput than {number(much.throughput)} output "
            f"tokens/s {where(much)}"
        )
    return (
        f"From {where(quick)[1:-1]} to {where(much)[1:-1]}, throughput rises from "
        f"{number(quick.throughput)} to {number(much.throughput)} output tokens/s, and the "
        f"{latency} from {number(unit.per_base * quick.latency)} to "
        f"{number(unit.per_base * much.latency)} {unit.name}"
    )


def _panel(options: Sequence[Option], names: Sequence[str], latency: str) -> Panel:
    unit = time_unit(option.latency for option in options)
    best = frontier(options)
    rows = [
        {
            "x": unit.of(option.latency),
            "y": rounded(option.throughput),
            "series": option.label,
            "load": _short(option.measured.load),
            "order": place,
            "best": option in best,
        }
        for place, option in enumerate(options)
    ]
    x = axis("x", f"{latency}, {unit.name}", scale={"zero": True})
    y = axis("y", "output tokens/s")
    layers = [_edge(options, unit, x, y), *_layers(x, y, names)]
    return Panel("", {**data(rows), "layer": layers}, 300)


def _edge(
    options: Sequence[Option], unit: Unit, x: Mapping[str, Any], y: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The frontier in these two, whatever the quality."""
    plain = [replace(option, quality=None) for option in options]
    ends = sorted((unit.of(o.latency), rounded(o.throughput)) for o in frontier(plain))
    line = {"type": "line", "style": ["line", "reference"], "interpolate": "step-after"}
    rows = [{"x": latency, "y": throughput} for latency, throughput in ends]
    return {**data(rows), "mark": line, "encoding": {"x": x, "y": y}}


def _layers(
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    names: Sequence[str],
) -> list[Mapping[str, Any]]:
    color, shape = colored(names), shaped(names)
    tooltip = [
        {"field": "series", "title": "result"},
        {"field": "load", "title": "load"},
        {"field": "x", "title": x["title"]},
        {"field": "y", "title": y["title"]},
    ]
    filled = {"condition": {"test": "datum.best", "value": 1}, "value": 0.08}
    return [
        {
            "mark": {"type": "line", "strokeWidth": 1.5, "opacity": 0.7},
            "encoding": {"x": x, "y": y, "color": color, "order": {"field": "order"}},
        },
        {
            "mark": {"type": "point", "size": 80, "filled": True, "strokeWidth": 1.5},
            "encoding": {
                "x": x,
                "y": y,
                "color": color,
                "stroke": color,
                "shape": shape,
                "fillOpacity": filled,
                "tooltip": tooltip,
            },
        },
        {
            "mark": {"type": "text", "dy": -11, "fontSize": 11},
            "encoding": {"x": x, "y": y, "text": {"field": "load"}},
        },
    ]


def _quality_panel(
    options: Sequence[Option], names: Sequence[str], measures: Sequence[str]
) -> Panel:
    """The third axis: the most throughput of each result by its quality."""
    best = frontier(options)
    most: dict[str, Option] = {}
    for option in options:
        name = option.measured.name
        if option.quality is not None and (
            name not in most or option.throughput > most[name].throughput
        ):
            most[name] = option
    rows = [
        {
            "x": rounded(option.quality.value),
            "y": rounded(option.throughput),
            "series": option.label,
            "load": _short(option.measured.load),
            "order": 0,
            "best": option in best,
        }
        for option in most.values()
        if option.quality is not None
    ]
    x = axis("x", f"{' / '.join(measures)} (less is better)", scale={"zero": False, "padding": 24})
    y = axis("y", "output tokens/s at the most")
    return Panel("", {**data(rows), "layer": _layers(x, y, names)[1:]}, 300)


def _table(
    found: Mapping[str, Sequence[Option]],
    drawn: Sequence[tuple[str, str]],
    measures: Sequence[str],
) -> Table:
    rows = []
    first = drawn[0][0]
    for option in found[first]:
        cells = [option.measured.name, str(option.measured.load), number(option.throughput)]
        for name, _ in drawn:
            each = next((o for o in found[name] if o.measured is option.measured), None)
            on = each is not None and each in frontier(found[name])
            time = "-" if each is None else number(each.latency * 1e3)
            cells += [time, "yes" if on else "no"]
        if measures:
            cells.append("-" if option.quality is None else f"{option.quality.value:g}")
        rows.append(cells)
    header = ["result", "load", "output tokens/s"]
    for _, title in drawn:
        header += [f"{title}, ms", "on the frontier"]
    return Table([*header, *([" / ".join(measures)] if measures else [])], rows)
