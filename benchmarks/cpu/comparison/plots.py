"""Bars of a comparison, as an SVG that is legible on light and on dark pages.

The same figures make the same file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from comparison.cases import Metric
from comparison.measurement import Summary
from comparison.report import number
from comparison.results import CaseRecord, Comparison

PANEL, LABELS, NUMBERS, GAP = 470, 108, 52, 26
"""Widths in pixels: of a panel, of its labels and numbers beside the bars, and between panels."""
BAR, BETWEEN = 17, 12
"""Heights in pixels: of a bar, and between the cases of a panel."""
TOP, HEAD, FOOT = 100, 26, 26
"""Heights in pixels: above the panels, of a panel's title, and of its axis."""
COLUMNS = 2

_STYLE = """\
svg{--page:#ffffff;--text:#1f2328;--soft:#59636e;--line:#d1d9e0;\
--e0:#0969da;--e1:#bc7d00;--e2:#1a7f37;--e3:#8250df;--e4:#cf222e;--e5:#1b7c83;--e6:#bf3989}
@media(prefers-color-scheme:dark){svg{--page:#0d1117;--text:#f0f6fc;--soft:#9198a1;--line:#3d444d;\
--e0:#4493f8;--e1:#d29922;--e2:#3fb950;--e3:#ab7df8;--e4:#f85149;--e5:#39c5cf;--e6:#f778ba}}
text{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:var(--text)}
.title{font-size:15px;font-weight:600}.head{font-weight:600}.soft{fill:var(--soft)}
.right{text-anchor:end}.middle{text-anchor:middle}
.pale{opacity:.35}.line{stroke:var(--line)}.range{stroke:var(--text);stroke-width:1.5}
"""


def draw(
    comparison: Comparison,
    precision: str,
    path: Path,
    metrics: Collection[Metric] = tuple(Metric),
) -> bool:
    """Write an SVG of the medians, with lines from the lowest to the highest round; False where
    nothing was measured."""
    panels = [p for metric in metrics if (p := _panel(comparison, precision, metric)) is not None]
    if not panels:
        return False
    columns = min(COLUMNS, len(panels))
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = [max(panel.height for panel in row) for row in rows]
    width = columns * PANEL + (columns + 1) * GAP
    height = TOP + sum(heights) + GAP * len(rows)
    parts = [*_heading(comparison, precision, panels)]
    y = float(TOP)
    for row, tall in zip(rows, heights, strict=True):
        for i, panel in enumerate(row):
            parts += panel.draw(GAP + i * (PANEL + GAP), y)
        y += tall + GAP
    path.parent.mkdir(parents=True, exist_ok=True)
    body = "\n".join(parts)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" '
        f'width="{width}" height="{height:.0f}">\n<style>{_STYLE}</style>\n'
        '<rect width="100%" height="100%" rx="6" fill="var(--page)" class="line"/>\n'
        f"{body}\n</svg>\n",
        encoding="utf-8",
    )
    return True


@dataclass(frozen=True)
class _Bar:
    engine: int  # its place among all, which chooses the color
    found: Summary


@dataclass(frozen=True)
class _Panel:
    """One metric: the bars of every engine, by case."""

    metric: Metric
    cases: list[tuple[CaseRecord, list[_Bar]]]

    @property
    def height(self) -> float:
        bars = sum(len(bars) * BAR + BETWEEN for _, bars in self.cases)
        return float(HEAD + bars + FOOT)

    def draw(self, x: float, y: float) -> Iterator[str]:
        better = "more" if self.metric.higher_is_better else "less"
        title = f"{self.metric.value} ({better} is better)"
        yield _text(x + LABELS, y + 12, title, "head")
        longest = max(bar.found.highest for _, bars in self.cases for bar in bars)
        step, count = _ticks(longest)
        scale = (PANEL - LABELS - NUMBERS) / (step * count)
        left, top, bottom = x + LABELS, y + HEAD, y + self.height - FOOT
        for i in range(count + 1):
            at = left + i * step * scale
            yield _line(at, top - 4, at, bottom, "line")
            yield _text(at, bottom + 16, number(i * step) if i else "0", "soft middle")
        y = top
        for case, bars in self.cases:
            yield _text(left - 8, y + len(bars) * BAR / 2 + 4, case.title, "right")
            for bar in bars:
                middle, end = y + BAR / 2, left + bar.found.median * scale
                look = "" if bar.found.is_figure else ' class="pale"'
                yield (
                    f'<rect x="{left:.1f}" y="{y + 1:.1f}" width="{end - left:.1f}" '
                    f'height="{BAR - 2}" fill="var(--e{bar.engine % 7})"{look}/>'
                )
                ends = left + bar.found.lowest * scale, left + bar.found.highest * scale
                yield _line(ends[0], middle, ends[1], middle, "range")
                yield _text(max(end, ends[1]) + 6, middle + 4, number(bar.found.median), "")
                y += BAR
            y += BETWEEN


def _panel(comparison: Comparison, precision: str, metric: Metric) -> _Panel | None:
    """What was measured of a metric; None if nothing was."""
    cases = []
    for case in comparison.cases:
        bars = []
        for i, name in enumerate(comparison.names):
            found = comparison.summary(name, precision, case.name, metric)
            if found is not None and metric.name in case.metrics:
                bars.append(_Bar(i, found))
        if bars:
            cases.append((case, bars))
    return _Panel(metric, cases) if cases else None


def _held(comparison: Comparison) -> str:
    """The cap and the load, where there are such."""
    cap = "" if comparison.cap is None else f" All held to {comparison.cap.isa}."
    load = comparison.load
    return cap + ("" if load is None else f" Load average {load[0]:.1f} to {load[1]:.1f}.")


def _heading(comparison: Comparison, precision: str, panels: Collection[_Panel]) -> Iterator[str]:
    machine = comparison.machine
    reads = machine.read_bandwidth_bytes_per_s
    speed = "" if reads is None else f", which read memory at {reads / 1e9:.0f} GB/s"
    title = comparison.shape if precision == "file" else f"{comparison.shape}, {precision}"
    yield _text(GAP, 28, title, "title")
    yield _text(
        GAP,
        47,
        f"{machine.cpu_model}, {machine.threads} threads{speed}; {comparison.date}."
        + _held(comparison),
        "soft",
    )
    rounds = max(bar.found.rounds for panel in panels for _, bars in panel.cases for bar in bars)
    pale = any(
        not bar.found.is_figure for panel in panels for _, bars in panel.cases for bar in bars
    )
    yield _text(
        GAP,
        65,
        f"Bars: medians of {rounds} rounds; lines: lowest to highest round."
        + (" Pale: one round, no figure." if pale else ""),
        "soft",
    )
    x = float(GAP)
    for i, name in enumerate(comparison.names):
        yield f'<rect x="{x:.1f}" y="75" width="11" height="11" fill="var(--e{i % 7})"/>'
        yield _text(x + 17, 85, name, "")
        x += 17 + 7.5 * len(name) + 18


def _ticks(longest: float) -> tuple[float, int]:
    """The distance of an axis' marks, a round number, and how many there are behind 0."""
    rough = longest / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * times for times in (1, 2, 2.5, 5, 10) if unit * times >= rough)
    return step, math.ceil(longest / step)


def _text(x: float, y: float, text: str, look: str) -> str:
    kind = f' class="{look}"' if look else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}>{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, look: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="{look}"/>'
