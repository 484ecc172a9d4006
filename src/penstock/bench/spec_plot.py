"""Plots the results of speculation beside the formula's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.bench.machine import Machine
from penstock.bench.plots.figure import Figure, Panel, Spec
from penstock.bench.plots.marks import axis, category, colored, data, shaped
from penstock.bench.plots.words import rounded
from penstock.bench.speculation import SpecResult, formula
from penstock.threads import format_count

_CURVE: Final = 50
_BAR: Final = 30


def spec_figure(results: Sequence[SpecResult], machine: Machine, about: str) -> Figure:
    """Speed-ups beside the formula's, tokens of a step, and acceptance by position; one color a
    method. ``about`` says what ran."""
    names = [f"{i + 1}. {result.method.partition(':')[0]}" for i, result in enumerate(results)]
    fastest = max(range(len(results)), key=lambda i: results[i].speedup)
    bandwidth = machine.read_bandwidth_bytes_per_s
    reads = "" if bandwidth is None else f", reads {bandwidth / 1e9:.0f} GB/s"
    return Figure(
        "speculation",
        "Speculation",
        f"With {names[fastest]}, decoding is {results[fastest].speedup:.2f} times as fast as plain",
        f"{about}. {machine.cpu_model}, {format_count(machine.threads)}{reads}. Bars: median "
        "speed-up, with a line from the lowest to the highest repeat; black: by the formula. "
        "Marks: measured; curves: (1 - a^(K+1)) / (1 - a) of each method's acceptance a.",
        [
            Panel("Speed-up", _speed(results, names), max(90, _BAR * len(names))),
            Panel("Tokens a step with a draft", _tokens(results, names)),
            Panel("Drafts accepted as far as a position", _positions(results, names)),
        ],
        names,
    )


def _speed(results: Sequence[SpecResult], names: Sequence[str]) -> Spec:
    rows = [
        {
            "series": name,
            "speedup": rounded(result.speedup),
            "formula": rounded(result.formula_speedup),
            "low": rounded(result.speedup_range[0]),
            "high": rounded(result.speedup_range[1]),
            "text": f"{result.speedup:.2f} ({result.formula_speedup:.2f})",
        }
        for name, result in zip(names, results, strict=True)
    ]
    title = "times the tokens/s of plain decoding (by the formula)"
    y = category("series", names)

    def at(field: str) -> Spec:
        return axis(field, title)

    return {
        **data(rows),
        "layer": [
            {
                "mark": {"type": "bar", "fillOpacity": 0.6, "size": 16},
                "encoding": {"y": y, "x": at("speedup"), "color": colored(names)},
            },
            {
                "mark": {"type": "rule", "style": ["rule", "ink"]},
                "encoding": {"y": y, "x": at("low"), "x2": {"field": "high"}},
            },
            {
                "mark": {
                    "type": "tick",
                    "style": ["tick", "ink"],
                    "thickness": 3,
                    "size": 22,
                    "opacity": 1,
                },
                "encoding": {"y": y, "x": at("formula")},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 6},
                "encoding": {"y": y, "x": at("right"), "text": {"field": "text"}},
                "transform": [
                    {"calculate": "max(datum.speedup, datum.high, datum.formula)", "as": "right"}
                ],
            },
            {
                "data": {"values": [{"plain": 1}]},
                "mark": {"type": "rule", "style": ["rule", "reference"]},
                "encoding": {"x": at("plain")},
            },
        ],
    }


def _tokens(results: Sequence[SpecResult], names: Sequence[str]) -> Spec:
    deepest = max(result.depth for result in results)
    curves = [
        {"series": name, "x": rounded(length), "y": rounded(formula(result.acceptance, length))}
        for name, result in zip(names, results, strict=True)
        for length in (deepest * i / _CURVE for i in range(_CURVE + 1))
    ]
    points = [
        {
            "series": name,
            "x": rounded(result.depth),
            "y": rounded(1 + result.accepted_per_draft),
            "text": f"{1 + result.accepted_per_draft:.2f}",
        }
        for name, result in zip(names, results, strict=True)
    ]
    x, y = axis("x", "tokens of a draft, K"), axis("y", "tokens")
    place = {"x": x, "y": y}
    color = colored(names)
    return {
        "layer": [
            {
                **data(curves),
                "mark": {"type": "line", "strokeWidth": 1.5},
                "encoding": {**place, "color": color},
            },
            {
                **data(points),
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {**place, "color": color, "shape": shaped(names)},
            },
            {
                **data(points),
                "mark": {"type": "text", "align": "right", "dx": -8},
                "encoding": {**place, "text": {"field": "text"}},
            },
        ]
    }


def _positions(results: Sequence[SpecResult], names: Sequence[str]) -> Spec:
    rows = [
        {"series": name, "x": position + 1, "y": rounded(share)}
        for name, result in zip(names, results, strict=True)
        for position, share in enumerate(result.accepted_by_position)
    ]
    x = axis("x", "position in the draft", axis={"format": "d", "tickMinStep": 1})
    y = axis("y", "share of all drafts", scale={"domain": [0, 1]})
    color = colored(names)
    return {
        **data(rows),
        "layer": [
            {"mark": {"type": "line"}, "encoding": {"x": x, "y": y, "color": color}},
            {
                "mark": {"type": "point", "filled": True, "size": 40, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": color, "shape": shaped(names)},
            },
        ],
    }
