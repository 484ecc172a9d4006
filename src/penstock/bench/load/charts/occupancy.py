"""What the server had to do, over the time of a run: its batch, its queue and its KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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
"""Metrics of servers, by what they tell; the first that a server has is taken. Shares of the KV
cache are from 0 to 1."""
_OPEN: Final = "open, as the client sees it"


@dataclass(frozen=True)
class _Course:
    """A quantity over a run."""

    times: Sequence[float]
    values: Sequence[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def most(self) -> float:
        return max(self.values)


def scraped(metrics: ServerMetrics | None, names: Sequence[str]) -> _Course | None:
    """A server's gauge over time, of all its labels together; None where it has none of ``names``.

    A label is an engine of the server or a model: numbers of requests are added, and shares are
    those of the fullest.
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
                values.append(max(now) if name in KV_USED else sum(now))
        if times:
            return _thinned(times, values)
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
    return _Course(times.tolist(), (begun - done).astype(np.float64).tolist())


def _thinned(times: Sequence[float], values: Sequence[float]) -> _Course:
    if len(times) <= _TIMES:
        return _Course(times, values)
    parts = np.array_split(np.arange(len(times)), _TIMES)
    at, value = np.array(times), np.array(values)
    return _Course(
        [float(at[part].mean()) for part in parts], [float(value[part].mean()) for part in parts]
    )


def batch_over_time(results: Sequence[Result]) -> Figure:
    """Requests that run and that wait, by the server's metrics, and that are open at the client."""
    loads = [result.loads for result in results]
    shown = chosen(loads, _PANELS)
    several = len(results) > 1
    kinds = ("running", "waiting", _OPEN)
    rows: list[tuple[str, ...]] = []
    panels = []
    told = False
    for measured in shown:
        run = measured.runs[0]
        courses = {
            "running": scraped(run.server_metrics, RUNNING),
            "waiting": scraped(run.server_metrics, WAITING),
            _OPEN: open_requests(run.requests, run.seconds),
        }
        found = {kind: course for kind, course in courses.items() if course is not None}
        told = told or "running" in found
        title = f"{measured.name}, {measured.load}" if several else str(measured.load)
        if found:
            panels.append(Panel(title, _spec(found, kinds, "requests"), 180))
        rows += [
            (measured.name, str(measured.load), kind, number(course.mean), number(course.most))
            for kind, course in found.items()
        ]
    if not panels:
        return Figure.without(_BATCH, _BATCH_SUBJECT, "No run has requests, nor metrics.")
    most = max(float(row[4].replace(",", "")) for row in rows if row[2] == "running" or not told)
    return Figure(
        _BATCH,
        _BATCH_SUBJECT,
        f"The server has up to {most:,.0f} requests in its batch"
        if told
        else f"Up to {most:,.0f} requests are open at once; no server tells its batch",
        "Running and waiting: the server's own metrics; open: sent, and the answer not yet "
        "complete. Of repeats the first run is drawn"
        + ("." if told else ". No server has metrics whose names are known (--scrape).")
        + left_out(loads, shown),
        panels,
        kinds,
        Table(("result", "load", "requests", "mean", "most"), rows),
        lines=True,
    )


def kv_over_time(results: Sequence[Result]) -> Figure:
    """The part of the KV cache that requests hold, by the server's metrics."""
    names = [result.name for result in results]
    loads = [result.loads for result in results]
    shown = chosen(loads, _PANELS)
    panels, rows, most = [], [], 0.0
    for load in dict.fromkeys(measured.load for measured in shown):
        found: dict[str, _Course] = {}
        for measured in shown:
            if measured.load == load:
                course = scraped(measured.runs[0].server_metrics, KV_USED)
                if course is not None:
                    found[measured.name] = _Course(
                        course.times, [100 * value for value in course.values]
                    )
        if found:
            panels.append(Panel(str(load), _spec(found, names, "KV cache in use, %"), 180))
            most = max(most, *(course.most for course in found.values()))
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
        f"Requests hold up to {most:.0f} % of the KV cache",
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
