"""What ``penstock bench serve`` prints of a load test."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.cli.bench_common import print_table
from penstock.terminal import harmless

if TYPE_CHECKING:
    from penstock.bench.load.document import LoadedRun, LoadReport

_SHOWN: Final = (
    ("first token", "ttft"),
    ("first output", "ttfo"),
    ("second token", "ttst"),
    ("between chunks", "itl"),
    ("per output token", "tpot"),
    ("whole answer", "e2el"),
)
"""Labels and quantities of a run's table."""


def print_report(report: LoadReport) -> None:
    """Print all of a load test: the server, each run, and how they compare."""
    from penstock.bench.load.charts.summary import workload_words

    server, text = report.server, report.text
    rows = [
        ("server", f"{server.model} at {server.url}, {server.endpoint}"),
        ("round trip", f"{server.round_trip_s * 1e3:.2f} ms"),
        ("workload", workload_words(report.workload)),
    ]
    if not text.exact and report.workload["name"] != "prompts":
        rows.append(
            (
                "prompt lengths",
                f"about as asked: {text.tokens_per_word:.2f} tokens a word, known by "
                f"{text.known_by}; --tokenizer makes them exact",
            )
        )
    if not server.ignores_eos:
        rows.append(("answer lengths", "the server does not know ignore_eos: they may be shorter"))
    _print(rows)
    for run in report.runs:
        print()
        _print(_run_rows(run))
    if len(report.points) > 1:
        print()
        _print_points(report)
    if report.search is not None:
        print()
        _print_search(report)


def _print(rows: Sequence[tuple[str, str]]) -> None:
    """Print a table whose words may be a server's."""
    print_table([(harmless(name, sys.stdout), harmless(text, sys.stdout)) for name, text in rows])


def _load(run: LoadedRun) -> str:
    rate = f"{run.rate:g}/s {run.arrivals}" if run.rate is not None else run.arrivals
    return rate if run.concurrency is None else f"{rate}, {run.concurrency} at once"


def _run_rows(run: LoadedRun) -> list[tuple[str, str]]:
    whole = run.whole
    rows = [
        ("load", _load(run)),
        ("requests", f"{whole.completed} of {whole.requests} in {run.seconds:.2f} s"),
    ]
    if run.partial:
        rows.append(("interrupted", f"{whole.stopped} were open; figures are of the others"))
    if whole.failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in whole.errors.items())
        rows.append(("failed", f"{whole.failed}: {kinds}"))
        rows += [(f"  {kind}", message) for kind, message in whole.error_messages.items()]
    if run.skipped_turns:
        rows.append(("never sent", f"{run.skipped_turns} turns after failed ones"))
    rows += [
        (
            "rate",
            f"{_number(whole.completed_per_s)} requests/s, "
            f"{_number(whole.output_tokens_per_s)} output tokens/s, "
            f"{_number(whole.input_tokens_per_s)} prompt tokens/s, "
            f"{_number(whole.mean_in_flight)} open on average",
        )
    ]
    rows += [(label, _times(run, key)) for label, key in _SHOWN if key in whole.distributions]
    if (steady := run.steady) is not None:
        rows.append(
            (
                "steady part",
                f"{steady.begin_s:.1f} to {steady.end_s:.1f} s: "
                f"{_number(steady.output_tokens_per_s)} output tokens/s"
                + _p99(run, "ttft", "first token"),
            )
        )
    for name, found in whole.patterns.items():
        times = [
            f"{label} p50 {each.summary.p50 * 1e3:,.1f} p99 {each.summary.p99 * 1e3:,.1f}"
            for label, key in (("first token", "ttft"), ("per token", "tpot"))
            if (each := found.get(key)) is not None
        ]
        rows.append((f"  {name}", ", ".join(times) + " ms"))
    if whole.good is not None and whole.good_share is not None:
        rows.append(("good", f"{whole.good_share:.1%}, {_number(whole.goodput_per_s)} requests/s"))
    if whole.cached_share is not None:
        rows.append(("prompt cached", f"{whole.cached_share:.1%} of prompt tokens"))
    acceptance = whole.draft_acceptance
    if acceptance is None and run.server_metrics is not None:
        acceptance = run.server_metrics.draft_acceptance
    if acceptance is not None:
        rows.append(("drafts accepted", f"{acceptance:.1%} of drafted tokens"))
    rows += [(f"  {what}", f"{n} answers") for what, n in whole.discrepancies.items()]
    if whole.without_usage:
        rows.append(("no usage", f"{whole.without_usage} answers; chunks were counted instead"))
    if whole.output_length_mismatches:
        rows.append(("other lengths", f"{whole.output_length_mismatches} answers than asked for"))
    if run.energy_j is not None:
        rows.append(("energy", f"{run.energy_j:,.0f} J of this machine's processors"))
    return [*rows, *_client_rows(run)]


def _client_rows(run: LoadedRun) -> list[tuple[str, str]]:
    client, sent = run.client, run.whole.distributions.get("send_lag")
    sending = "" if sent is None else f"sent p99 {sent.summary.p99 * 1e3:.2f} ms late, "
    late = "; the client is late itself: believe no figure of that size"
    note = late if run.client_late else ""
    return [
        (
            "client",
            f"{sending}read p99 {client.loop_lag_p99_s * 1e3:.2f} ms late, "
            f"{client.cpu_s / max(run.seconds, 1e-9):.0%} of a core{note}",
        )
    ]


def _times(run: LoadedRun, key: str) -> str:
    """Percentiles in milliseconds, each with half of its interval's width."""
    found = run.whole.distributions[key]
    parts = []
    for name in ("mean", "p50", "p90", "p99"):
        interval = getattr(found, name)
        half = (interval.high - interval.low) / 2 * 1e3
        parts.append(f"{name} {getattr(found.summary, name) * 1e3:,.2f} ±{half:,.2f}")
    return "  ".join(parts) + " ms"


def _p99(run: LoadedRun, key: str, label: str) -> str:
    if run.steady is None or key not in run.steady.distributions:
        return ""
    return f", {label} p99 {run.steady.distributions[key].summary.p99 * 1e3:,.2f} ms"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _print_points(report: LoadReport) -> None:
    """A line for each run, to be compared."""
    print(f"{'load':<28}{'requests/s':>11}{'tokens/s':>11}{'TTFT p99':>11}{'TPOT p99':>11}  good")
    for run in report.runs:
        whole = run.whole
        ends = [
            _number(found.summary.p99 * 1e3) if (found := whole.distributions.get(key)) else "-"
            for key in ("ttft", "tpot")
        ]
        good = "-" if whole.good_share is None else f"{whole.good_share:.1%}"
        print(
            f"{_load(run):<28}{_number(whole.completed_per_s):>11}"
            f"{_number(whole.output_tokens_per_s):>11}{ends[0]:>11}{ends[1]:>11}  {good}"
        )


def _print_search(report: LoadReport) -> None:
    found = report.search
    assert found is not None
    limits = " ".join(map(str, report.slo))
    share = f"{found.good_share:.0%} of answers within {limits}"
    if found.highest_good is None:
        print(f"no rate was carried with {share}")
        return
    bound = "" if found.lowest_bad is None else f"; {found.lowest_bad:.3g}/s was too much"
    print(f"highest rate with {share}: {found.highest_good:.3g}/s{bound}")
