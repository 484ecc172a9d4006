"""What ``penstock simulate`` prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.bench.digits import megabytes
from penstock.cli.size_table import aligned, time_text
from penstock.simulate.outcome import SimulatedRun
from penstock.simulate.report import SimulationReport
from penstock.terminal import harmless

_TIMES: Final = (("TTFT", "ttft"), ("ITL", "itl"), ("e2e", "e2el"))
_HEAD: Final = (
    *("config", "load", "done/s", "out tok/s"),
    *(f"{label} {part}" for label, _ in _TIMES for part in ("p50", "p99")),
    *("good", "failed", "preempted", "hits", "running", "KV", "busy"),
)


def print_report(report: SimulationReport) -> None:
    """Print a line for each configuration and load, what they rest on, and their ranking."""
    for line in _lines(report):
        print(harmless(line, sys.stdout))


def _lines(report: SimulationReport) -> Iterator[str]:
    about = report.workload
    repeat = f", {about['repeat']} times" if about["repeat"] > 1 else ""
    yield f"model  {report.simulation}"
    yield (
        f"trace  {about.get('file')}, {about['conversations']:,} conversations{repeat}"
        + (f", lengths x {about['scale']:g}" if about.get("scale") != 1 else "")
        + (f", {about['left_out']:,} left out" if about.get("left_out") else "")
    )
    if report.slo:
        yield f"SLO    {', '.join(map(str, report.slo))}"
    yield ""
    yield from aligned([_HEAD, *(_row(each) for each in report.runs)], left=2)
    yield ""
    if report.partial:
        yield "interrupted: what is missing was not simulated"
    yield from _notes(report.runs)
    if any(len(each.configs) > 1 for each in report.rankings):
        for ranked in report.rankings:
            yield f"best by {ranked.by} at {ranked.load}: {', '.join(ranked.configs)}"
    if report.runs:
        served = sum(each.seconds for each in report.runs)
        took = sum(each.simulated_in_s for each in report.runs)
        yield f"{served:,.0f} s of serving, simulated in {took:,.1f} s"


def _row(run: SimulatedRun) -> tuple[str, ...]:
    times = []
    for _, name in _TIMES:
        found = run.distributions.get(name)
        times += ["-", "-"] if found is None else [time_text(found.p50), time_text(found.p99)]
    engine = run.engine
    return (
        run.config if run.replicas == 1 else f"{run.config} ({run.replicas} x, {run.routing})",
        _load(run),
        f"{run.completed_per_s:,.2f}",
        f"{run.output_tokens_per_s:,.0f}",
        *times,
        "-" if run.good_share is None else f"{run.good_share:.1%}",
        f"{run.failed:,}",
        f"{engine.preemptions:,}",
        "-" if engine.prefix_hit_rate is None else f"{engine.prefix_hit_rate:.1%}",
        f"{engine.mean_running:,.1f}",
        f"{engine.kv_used:.0%}",
        f"{engine.busy_share:.0%}",
    )


def _prompts(count: int) -> str:
    return "1 prompt was" if count == 1 else f"{count:,} prompts were"


def _load(run: SimulatedRun) -> str:
    rate = f"{run.rate:g}/s" if run.rate is not None else f"{run.offered_per_s:.3g}/s"
    return rate if run.concurrency is None else f"{rate}, {run.concurrency} at once"


def _notes(runs: Sequence[SimulatedRun]) -> Iterator[str]:
    """What is to be known of the figures; of several runs once."""
    for run in runs:
        if (handed := run.handovers) is not None:
            yield (
                f"{run.config} at {_load(run)}: {_prompts(handed.completed)} handed over, of "
                f"{handed.tokens:,} tokens and {megabytes(handed.bytes)}; {handed.declined:,} did "
                f"not pay, {handed.failed:,} failed"
            )
        if run.disk_share is not None:
            yield (
                f"{run.config} at {_load(run)}: {run.cached_share:.2%} of the prompt tokens were "
                f"in the pool, and {run.disk_share:.2%} on disk besides; times are those without it"
            )
        if run.errors:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in run.errors.items())
            yield f"{run.config} at {_load(run)}: {kinds}"
        if run.good == 0 and run.missed is not None:
            yield (
                f"{run.config} at {_load(run)}: no answer is good; {run.missed.limit} is met by "
                f"{run.missed.good_share:.1%} alone, whose p99 is {time_text(run.missed.p99)}"
            )
    for told in dict.fromkeys(f"{run.config}: {text}" for run in runs for text in run.beyond):
        yield told
    for told in dict.fromkeys(text for run in runs for text in run.notes):
        yield told
