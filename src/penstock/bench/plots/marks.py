"""Parts of Vega-Lite's views that figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.bench.plots.figure import Spec
from penstock.bench.plots.theme import DASHES


def data(rows: Sequence[Mapping[str, object]]) -> Spec:
    """The rows that a layer draws."""
    return {"data": {"values": list(rows)}}


def layered(*layers: Spec) -> list[Spec]:
    """The layers that have something to draw: of others Vega cannot tell the extent."""
    return [layer for layer in layers if "data" not in layer or layer["data"]["values"]]


def axis(field: str, title: str, **more: Any) -> Spec:
    """A position by a number, on an axis from 0 unless ``more`` says otherwise."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def category(field: str, order: Sequence[str], title: str | None = None, **more: Any) -> Spec:
    """A position or an offset by a name, in the given order."""
    return {"field": field, "type": "nominal", "title": title, "sort": list(order), **more}


def colored(series: Sequence[str]) -> Spec:
    """The colors of all of a figure's series, in their order."""
    return _by_series(series)


def shaped(series: Sequence[str]) -> Spec:
    """Marks of their own for all of a figure's series."""
    return _by_series(series)


def dashed(series: Sequence[str]) -> Spec:
    """Lines of their own for all of a figure's series."""
    return _by_series(series, range=[list(DASHES[i % len(DASHES)]) for i in range(len(series))])


def _by_series(series: Sequence[str], **scale: Any) -> Spec:
    return {
        "field": "series",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(series), **scale},
        **({} if len(series) > 1 else {"legend": None}),
    }
