"""Makes the report of load tests: a page, and a file for each plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.bench.load.charts.completion import completion
from penstock.bench.load.charts.frontier import throughput_by_latency
from penstock.bench.load.charts.itl import itl_by_position
from penstock.bench.load.charts.lengths import times_by_lengths
from penstock.bench.load.charts.load_curves import goodput, latency_by_load
from penstock.bench.load.charts.occupancy import batch_over_time, kv_over_time
from penstock.bench.load.charts.summary import (
    about,
    facts,
    figures_table,
    meanings,
    results_table,
    title_of,
    warnings,
)
from penstock.bench.load.charts.ttft import ttft_by_prompt
from penstock.bench.load.result import Result
from penstock.bench.plots.figure import Figure
from penstock.bench.plots.page import Page
from penstock.bench.plots.render import PlotFormat, write_plot


def figures_of(results: Sequence[Result]) -> list[Figure]:
    """Every figure of a report, in its order; those that cannot be drawn say why."""
    return [
        make(results)
        for make in (
            throughput_by_latency,
            goodput,
            latency_by_load,
            completion,
            ttft_by_prompt,
            itl_by_position,
            times_by_lengths,
            batch_over_time,
            kv_over_time,
        )
    ]


def page_of(results: Sequence[Result], figures: Sequence[Figure]) -> Page:
    """The whole report."""
    return Page(
        title_of(results),
        list(facts(results)),
        list(warnings(results)),
        [*([results_table(results)] if len(results) > 1 else []), figures_table(results)],
        figures,
        [meanings(results)],
    )


def write_plots(
    results: Sequence[Result], figures: Sequence[Figure], folder: Path, kind: PlotFormat
) -> list[Path]:
    """Write a file for each figure that can be drawn."""
    words = about(results)
    paths = []
    for figure in figures:
        if figure.omitted is None:
            path = folder / f"{figure.name}.{kind}"
            write_plot(figure, path, words)
            paths.append(path)
    return paths
