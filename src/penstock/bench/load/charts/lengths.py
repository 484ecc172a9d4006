"""How long answers take by the lengths of prompt and answer, as heat maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.bench.load.result import Measured, Result, chosen, left_out
from penstock.bench.plots.figure import Figure, Panel, Table
from penstock.bench.plots.marks import category, data
from penstock.bench.plots.words import duration, rounded

_NAME: Final = "lengths"
_SUBJECT: Final = "Time by lengths of prompt and answer"
_PANELS: Final = 6
_BINS: Final = 6
_ALIKE: Final = 1.15
"""Lengths within this ratio of the shortest of them are nearly alike."""
_ROW: Final = 44


@dataclass(frozen=True)
class Bin:
    """Lengths from ``first`` to ``last`` tokens."""

    first: int
    last: int

    def __str__(self) -> str:
        if self.first == self.last:
            return f"{self.first:,}"
        return f"{self.first:,}\u2013{self.last:,}"


@dataclass(frozen=True)
class _Cell:
    prompt: Bin
    answer: Bin
    count: int
    median: float
    """Seconds of a whole answer."""


def bins_of(lengths: Sequence[int]) -> list[Bin]:
    """Cut lengths into six ranges at most: those that are nearly alike together where that makes
    few, as a template's tokens vary by one or two; else ranges of equal ratios, so that short ones
    are told apart as well as long ones."""
    distinct = sorted(set(lengths))
    groups: list[list[int]] = []
    for length in distinct:
        if groups and length <= groups[-1][0] * _ALIKE:
            groups[-1].append(length)
        else:
            groups.append([length])
    if len(groups) <= _BINS:
        return [Bin(group[0], group[-1]) for group in groups]
    low, high = max(1, distinct[0]), distinct[-1]
    edges = [low * (high / low) ** (i / _BINS) for i in range(1, _BINS)]
    rounded_edges = {_round(edge) for edge in edges if distinct[0] < _round(edge) <= high}
    firsts = [distinct[0], *sorted(rounded_edges)]
    lasts = [*(first - 1 for first in firsts[1:]), high]
    return [
        Bin(first, last)
        for first, last in zip(firsts, lasts, strict=True)
        if any(first <= length <= last for length in distinct)
    ]


def _round(value: float) -> int:
    """The nearest number with two digits and zeros."""
    size: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return round(value / size) * size


def times_by_lengths(results: Sequence[Result]) -> Figure:
    """Median and count of whole answers by both lengths, for each load of each result."""
    drawable = [[each for each in result.loads if _triples(each)] for result in results]
    measured = [each for loads in drawable for each in loads]
    if not measured:
        return Figure.without(
            _NAME,
            _SUBJECT,
            "No whole answer has a prompt that the server counted.",
        )
    every = [triple for each in measured for triple in _triples(each)]
    prompts, answers = bins_of([t[0] for t in every]), bins_of([t[1] for t in every])
    if len(prompts) == 1 and len(answers) == 1:
        return Figure.without(
            _NAME,
            _SUBJECT,
            f"All prompts have {prompts[0]} tokens and all answers {answers[0]}: a map would have "
            "one field.",
        )
    shown = chosen(drawable, _PANELS)
    maps = [_cells(each, prompts, answers) for each in shown]
    most = max(cell.median for cells in maps for cell in cells)
    least = min(cell.median for cells in maps for cell in cells)
    several = len({each.name for each in measured}) > 1
    panels = [
        Panel(
            "" if len(shown) == 1 else _panel_title(each, several),
            _spec(cells, prompts, answers, (least, most)),
            _ROW * len(answers),
        )
        for each, cells in zip(shown, maps, strict=True)
    ]
    return Figure(
        _NAME,
        _SUBJECT,
        f"The median answer takes {duration(least)} to {duration(most)}, by "
        + ("lengths and load" if len(shown) > 1 else "lengths"),
        "Fields have the median time of a whole answer and how many answers it is of; a stronger "
        f"color is longer. n = {len(every):,} answers." + left_out(drawable, shown),
        panels,
        (),
        _table(shown, maps),
    )


def _panel_title(measured: Measured, several: bool) -> str:
    return f"{measured.name}, {measured.load}" if several else str(measured.load)


def _triples(measured: Measured) -> list[tuple[int, int, float]]:
    return [
        (record.input_tokens, record.tokens, seconds)
        for record in measured.answers
        if record.input_tokens is not None and (seconds := record.e2el_s) is not None
    ]


def _cells(measured: Measured, prompts: Sequence[Bin], answers: Sequence[Bin]) -> list[_Cell]:
    inside: dict[tuple[Bin, Bin], list[float]] = {}
    for prompt, answer, seconds in _triples(measured):
        key = _bin(prompts, prompt), _bin(answers, answer)
        inside.setdefault(key, []).append(seconds)
    return [
        _Cell(prompt, answer, len(times), float(np.median(times)))
        for (prompt, answer), times in sorted(inside.items(), key=lambda item: _order(item[0]))
    ]


def _bin(bins: Sequence[Bin], length: int) -> Bin:
    return next(each for each in bins if each.first <= length <= each.last)


def _order(key: tuple[Bin, Bin]) -> tuple[int, int]:
    return key[0].first, key[1].first


def _spec(
    cells: Sequence[_Cell],
    prompts: Sequence[Bin],
    answers: Sequence[Bin],
    span: tuple[float, float],
) -> Mapping[str, object]:
    rows = [
        {
            "prompt": str(cell.prompt),
            "answer": str(cell.answer),
            "seconds": rounded(cell.median),
            "time": duration(cell.median),
            "count": f"n = {cell.count:,}",
        }
        for cell in cells
    ]
    least, most = span
    kind = "log" if least > 0 and most > 10 * least else "linear"
    scale = {"type": kind, "domain": [rounded(least * 0.999), rounded(most * 1.001)]}
    shade = {**scale, "range": [0.07, 0.55]}
    x = category("prompt", [str(each) for each in prompts], "prompt tokens", axis={"labelAngle": 0})
    y = category("answer", [str(each) for each in reversed(answers)], "output tokens")
    place = {"x": x, "y": y}
    return {
        **data(rows),
        "layer": [
            {
                "mark": {"type": "rect", "style": ["rect", "heat"]},
                "encoding": {
                    **place,
                    "fillOpacity": {
                        "field": "seconds",
                        "type": "quantitative",
                        "scale": shade,
                        "legend": None,
                    },
                },
            },
            {
                "mark": {"type": "text", "dy": -7, "fontWeight": 600},
                "encoding": {**place, "text": {"field": "time"}},
            },
            {
                "mark": {"type": "text", "dy": 9, "fontSize": 11},
                "encoding": {**place, "text": {"field": "count"}},
            },
        ],
    }


def _table(shown: Sequence[Measured], maps: Sequence[Sequence[_Cell]]) -> Table:
    rows = [
        (
            each.name,
            str(each.load),
            str(cell.prompt),
            str(cell.answer),
            f"{cell.count:,}",
            duration(cell.median),
        )
        for each, cells in zip(shown, maps, strict=True)
        for cell in cells
    ]
    header = ("result", "load", "prompt tokens", "output tokens", "answers", "median time")
    return Table(header, rows)
