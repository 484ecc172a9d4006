"""What ``penstock observe`` prints of a workload."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.terminal import harmless

if TYPE_CHECKING:
    from penstock.workload.arrivals import Arrivals
    from penstock.workload.length_table import LengthTable
    from penstock.workload.metrics import MetricsSummary, Spread
    from penstock.workload.quantiles import Quantiles
    from penstock.workload.report import ObservedWorkload
    from penstock.workload.summary import WorkloadSummary

Rows = list[tuple[str, str]]

_BARS: Final = "▁▂▃▄▅▆▇█"
_SHADES: Final = " ░▒▓█"
_PLAIN_BARS: Final = "_.:-=+*#"
_PLAIN_SHADES: Final = " .:*#"


def print_observed(where: str, observed: ObservedWorkload) -> None:
    """Print what a server tells."""
    rows = [("server", where), ("observed", f"for {_duration(observed.now - observed.began)}")]
    if observed.refused_full:
        rows.append(("refused", f"{observed.refused_full:,}, since the queue was full"))
    print_summary(rows, observed.workload)


def print_summary(rows: Rows, summary: WorkloadSummary, of_day: bool = True) -> None:
    """Print figures below what is known of their source. ``of_day``: times are those of a clock."""
    rows = [*rows, ("requests", _requests(summary))]
    if summary.endpoints:
        rows.append(("endpoints", _counted(summary.endpoints)))
    if set(summary.ends) - {"stop", "length"}:
        rows.append(("ends", _counted(summary.ends)))
    if summary.several_answers:
        rows.append(("several answers", f"{summary.several_answers:,} requests ask for them"))
    rows += _quantiles("prompt tokens", summary.prompt_tokens, _tokens)
    rows += _quantiles("answer tokens", summary.output_tokens, _tokens)
    rows += _quantiles("first token", summary.first_token_s, _time)
    rows += _quantiles("per token", summary.per_output_token_s, _time)
    rows += _arrivals(summary.arrivals, of_day)
    rows += _patterns(summary)
    rows += _prefixes(summary)
    _print_rows(rows)
    if summary.table is not None:
        print()
        _print_lengths(summary.table)


def print_metrics(url: str, found: MetricsSummary) -> None:
    """Print what a server's metrics say, since its start."""
    rows = [("server", f"{url}, since its start")]
    if found.ends:
        rows.append(("ends", _counted(found.ends)))
    rows += _spread("prompt tokens", found.prompt_tokens, _tokens)
    rows += _spread("answer tokens", found.output_tokens, _tokens)
    rows += _spread("first token", found.first_token_s, _time)
    if found.found_in_cache is not None:
        rows.append(("prefix cache", f"{found.found_in_cache:.1%} of what was looked up was found"))
    _print_rows(rows)


def _spread(label: str, found: Spread | None, shown: Callable[[float], str]) -> Rows:
    if found is None:
        return []
    text = f"{found.count:,}: mean {shown(found.mean)}"
    for name in ("p50", "p90", "p99"):
        low, high = getattr(found, name)
        text += f"  {name} " + (
            f"over {shown(low)}" if high is None else f"{shown(low)}-{shown(high)}"
        )
    return [(label, text)]


def _print_rows(rows: Rows) -> None:
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        print(harmless(f"{label:<{width}}  {text}", sys.stdout))


def _requests(summary: WorkloadSummary) -> str:
    text = f"{summary.requests:,}"
    if summary.arrivals is not None and summary.arrivals.seconds > 0:
        text += f" in {_duration(summary.arrivals.seconds)}"
    return text + (f"; {summary.forgotten:,} before these are not kept" * bool(summary.forgotten))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _quantiles(label: str, found: Quantiles | None, shown: Callable[[float], str]) -> Rows:
    if found is None:
        return []
    names = ("mean", "p50", "p90", "p99", "max")
    return [(label, "  ".join(f"{name} {shown(getattr(found, name))}" for name in names))]


def _arrivals(found: Arrivals | None, of_day: bool) -> Rows:
    if found is None:
        return []
    rate = "all at once" if found.rate is None else f"{found.rate:.3g}/s"
    text = f"{rate}, at most {found.peak_second:,} in a second"
    if found.seconds > 60:
        at = f"after {_duration(found.peak_minute_at - found.first)}"
        if of_day:
            at = f"at {datetime.datetime.fromtimestamp(found.peak_minute_at):%Y-%m-%d %H:%M:%S}"
        text += f" and {found.peak_minute:,} in a minute ({at})"
    rows = [("arrivals", text)]
    if found.gap_variation is not None:
        rows.append(
            ("burstiness", f"gaps vary by {found.gap_variation:.2f} of their mean (Poisson: 1)")
        )
    if len(found.counts) > 1:
        most, bars = max(found.counts), _drawn(_BARS, _PLAIN_BARS)
        drawn = "".join(
            bars[count * (len(bars) - 1) // most] if count else " " for count in found.counts
        )
        rows.append(("", f"{drawn}  {_duration(found.span_s)} each, at most {most:,}"))
    return rows


def _patterns(summary: WorkloadSummary) -> Rows:
    found = summary.patterns
    if found is None:
        return []
    shares = ", ".join(f"{name} {share:.1%}" for name, share in found.shares.items())
    return [
        ("patterns", shares),
        ("", f"long: from {found.long_input_from} in and {found.long_output_from} out"),
    ]


def _prefixes(summary: WorkloadSummary) -> Rows:
    found = summary.prefixes
    if found is None or not found.prompt_tokens:
        return []
    text = f"{found.shareable_tokens / found.prompt_tokens:.1%} of prompt tokens were there before"
    if found.cached_tokens is not None:
        text += f", {found.cached_tokens / found.prompt_tokens:.1%} were found in the cache"
    rows = [
        (
            "shared prefixes",
            f"{text}; of {found.sharing_requests / summary.requests:.1%} of requests",
        )
    ]
    turns = summary.conversations
    if turns is not None:
        rows.append(
            (
                "conversations",
                f"{turns.conversations:,}, of up to {turns.longest} turns; {turns.requests:,} "
                "requests continue one",
            )
        )
        rows += _quantiles("  a turn adds", turns.new_tokens, _tokens)
        rows += _quantiles("  pause before it", turns.pause_s, _time)
    return rows


def _print_lengths(table: LengthTable) -> None:
    """Print the shares of requests by lengths, darker where there are more."""
    total = sum(map(sum, table.counts))
    most = max(map(max, table.counts))
    shades = _drawn(_SHADES, _PLAIN_SHADES)
    label = "prompt from"
    width = max(len(label), *(len(f"{bound:,}") for bound in table.prompt_from))
    heads = [f"{bound:,}" for bound in table.output_from]
    cell = max(len(" 100.0█"), *(len(head) + 1 for head in heads))
    print(f"{'':<{width}}  requests in % by tokens; answer from")
    print(f"{label:<{width}}" + "".join(f"{head:>{cell}}" for head in heads))
    for bound, counts in zip(table.prompt_from, table.counts, strict=True):
        cells = "".join(
            f"{_share(count, total):>{cell - 1}}{shades[_shade(count, most)]}" for count in counts
        )
        print(f"{bound:>{width},}{cells}".rstrip())


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f}" if count else "."


def _shade(count: int, most: int) -> int:
    return -(-count * 4 // most)


def _drawn(fine: str, plain: str) -> Sequence[str]:
    try:
        fine.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return plain
    return fine


def _tokens(value: float) -> str:
    return f"{value:,.0f}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if abs(seconds) < 1 else f"{seconds:,.2f} s"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    for size, unit, part, name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{seconds:.3g} s"
