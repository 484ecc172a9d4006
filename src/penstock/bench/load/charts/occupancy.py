"""What the server had to do, over the time of a run: its batch, its queue and its KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from penstock.bench.load.record import RequestRecord
from penstock.bench.load.result import Result, chosen, left_out
from penstock.bench.load.scrape import ServerMetrics
from penstock.bench.plots.figure import Figure, Panel, Table
from penstock.bench.plots.marks import axis, colored, dashed, data
from penstock.bench.plots.words import number, rounded

_BATCH: Final = "batch"
_KV: Final = "kv-cache"
_BATCH_SUBJECT: Final = "Batch over time"
_KV_SUBJECT: Final = "KV cache over time"
_PANELS: Final = 6
_TIMES: Final = 240
"""Points of a line; of more, each is the mean of its part of the time."""

RUNNING: Final = (
    "penstock:num_requests_running",
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
    "tgi_batch_current_size",
)
WAITING: Final = (
    "penstock:num_requests_waiting",
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
    "tgi_queue_size",
)
KV_USED: Final = (
    "penstock:kv_cache_usage_perc",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "llamacpp:kv_cache_usage_ratio",
)
"""Metrics of servers, by what they tell; the first that a server has is taken. These shares of the
KV cache are from 0 to 1."""
_OPEN: Final = "open, as the client sees it"


@dataclass(frozen=True)
class _Course:
    """A quantity over a run."""

    times: Sequence[float]
    values: Sequence[float]
    """As many as are drawn, each the mean of its part of the time."""
    mean: float
    most: float
    """The greatest of all values, drawn or not."""

    @classmethod
    def of(cls, times: Sequence[float], values: Sequence[float]) -> _Course:
        parts = np.array_split(np.arange(len(times)), min(len(times), _TIMES))
        at, value = np.array(times), np.array(values)
        return cls(
            [float(at[part].mean()) for part in parts],
            [float(value[part].mean()) for part in parts],
            float(value.mean()),
            float(value.max()),
        )


def scraped(metrics: ServerMetrics | None, names: Sequence[str]) -> _Course | None:
    """A server's gauge over time, of all its labels together; None where it has none of ``names``.

    A label is an engine of the server or a model: numbers of requests are added, and shares, in
    percent, are those of the fullest.
    """
    if metrics is None:
        return None
    for name in names:
        constant = [v for key, v in metrics.constant.items() if key.partition("{")[0] == name]
        varying = [v for key, v in metrics.varying.items() if key.partition("{")[0] == name]
        if not constant and not varying:
            continue
        times, values = [], []
        for place, at in enumerate(metrics.times_s):
            now = [v for each in varying if (v := _at(each, place)) is not None] + constant
            if now:
                times.append(at)
                values.append(100 * max(now) if name in KV_USED else sum(now))
        if times:
            return _Course.of(times, values)
    return None


def _at(values: Sequence[float | None], place: int) -> float | None:
    return values[place] if place < len(values) else None


def open_requests(records: Sequence[RequestRecord], seconds: float) -> _Course | None:
    """How many requests the client had sent without the end of their answers."""
    if not records or seconds <= 0:
        return None
    times = np.linspace(0, seconds, _TIMES)
    sent = np.sort([record.sent_s for record in records])
    ended = np.sort([record.end_s for record in records])
    begun = np.searchsorted(sent, times, side="right")
    done = np.searchsorted(ended, times, side="right")
    course = _Course.of(times.tolist(), (begun - done).tolist())
    # Between two of these times there may be more: the most are open just after one is sent.
    at_once = np.arange(1, len(sent) + 1) - np.searchsorted(ended, sent, side="right")
    return replace(course, most=float(at_once.max()))


def batch_over_time(results: Sequence[Result]) -> Figure:
    """Requests that run and that wait, by the server's metrics, and that are open at the client."""
    loads = [result.loads for result in results]
    shown = chosen(loads, _PANELS)
    several = len(results) > 1
    kinds = ("running", "waiting", _OPEN)
    rows: list[tuple[str, ...]] = []
    panels = []
    fullest: dict[str, _Most] = {}
    for measured in shown:
        run = measured.runs[0]
        courses = {
            "running": scraped(run.server_metrics, RUNNING),
            "waiting": scraped(run.server_metrics, WAITING),
            _OPEN: open_requests(run.requests, run.seconds),
        }
        found = {kind: course for kind, course in courses.items() if course is not None}
        title = f"{measured.name}, {measured.load}" if several else str(measured.load)
        for kind, course in found.items():
            fullest[kind] = max(fullest.get(kind, _NONE), _Most(course.most, title))
        if found:
            panels.append(Panel(title, _spec(found, kinds, "requests"), 180))
        rows += [
            (measured.name, str(measured.load), kind, number(course.mean), number(course.most))
            for kind, course in found.items()
        ]
    if not panels:
        return Figure.without(_BATCH, _BATCH_SUBJECT, "No run has requests, nor metrics.")
    told = "running" in fullest
    return Figure(
        _BATCH,
        _BATCH_SUBJECT,
        _batch_title(fullest, several),
        "Running and waiting: the server's own metrics; open: sent, and the answer not yet "
        "complete. Of repeats the first run is drawn"
        + ("." if told else ". No server has metrics whose names are known (--scrape).")
        + left_out(loads, shown),
        panels,
        kinds,
        Table(("result", "load", "requests", "mean", "most"), rows),
        lines=True,
    )


class _Most(NamedTuple):
    """The greatest value of several courses, and whose it is."""

    value: float
    whose: str


_NONE: Final = _Most(-1.0, "")


def _batch_title(fullest: Mapping[str, _Most], several: bool) -> str:
    if (most := fullest.get("running")) is not None:
        if several:
            return f"The fullest batch has {most.value:,.0f} requests ({most.whose})"
        return f"The server has up to {most.value:,.0f} requests in its batch"
    if (most := fullest.get(_OPEN)) is None:
        return "No server tells its batch"
    whose = f" ({most.whose})" if several else ""
    return f"Up to {most.value:,.0f} requests are open at once{whose}; no server tells its batch"


def kv_over_time(results: Sequence[Result]) -> Figure:
    """The part of the KV cache that requests hold, by the server's metrics."""
    names = [result.name for result in results]
    loads = [result.loads for result in results]
    shown = chosen(loads, _PANELS)
    panels, rows, most = [], [], _NONE
    for load in dict.fromkeys(measured.load for measured in shown):
        found: dict[str, _Course] = {}
        for measured in shown:
            if measured.load == load:
                course = scraped(measured.runs[0].server_metrics, KV_USED)
                if course is not None:
                    found[measured.name] = course
                    most = max(most, _Most(course.most, f"{measured.name}, {load}"))
        if found:
            panels.append(Panel(str(load), _spec(found, names, "KV cache in use, %"), 180))
        rows += [
            (name, str(load), number(course.mean), number(course.most))
            for name, course in found.items()
        ]
    if not panels:
        return Figure.without(
            _KV,
            _KV_SUBJECT,
            "No server told the use of its KV cache: its /metrics was not read (--scrape 0), is "
            "switched off (llama.cpp: --metrics), or has no metric of a known name "
            f"({', '.join(KV_USED)}).",
        )
    return Figure(
        _KV,
        _KV_SUBJECT,
        f"Requests hold up to {most.value:.3g} % of the KV cache"
        + (f" ({most.whose})" if len(results) > 1 else ""),
        "By the server's own metrics, of the first run of each load; where it has several engines, "
        "the fullest." + left_out(loads, shown),
        panels,
        names,
        Table(("result", "load", "mean, %", "most, %"), rows),
        lines=True,
    )


def _spec(
    courses: Mapping[str, _Course], series: Sequence[str], title: str
) -> Mapping[str, object]:
    rows = [
        {"x": rounded(at), "y": rounded(value), "series": name}
        for name, course in courses.items()
        for at, value in zip(course.times, course.values, strict=True)
    ]
    return {
        **data(rows),
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5},
        "encoding": {
            "x": axis("x", "seconds since the run began"),
            "y": axis("y", title),
            "color": colored(series),
            "strokeDash": dashed(series),
        },
    }
