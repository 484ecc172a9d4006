"""What ``penstock bench compare`` prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.bench.plots.words import duration, number
from penstock.terminal import harmless

if TYPE_CHECKING:
    from penstock.bench.load.compare.document import Change, ComparedPoint, Comparison
    from penstock.bench.load.result import Result
    from penstock.bench.load.setups import Difference

_HEADER: Final = ("", "A", "B", "B is", "95 %", "chance", "")
_LONG: Final = 60
_BEFORE: Final = 12


def print_comparison(a: Result, b: Result, found: Comparison) -> None:
    """Print the set-ups, the figures of each load, and what it comes to."""
    for letter, result in (("A", a), ("B", b)):
        report = result.report
        server = f"{report.server.model} at {report.server.url}"
        _say(f"{letter}  {result.name}: {server}, {report.finished}")
    _print_differences(found.differences)
    for point in found.points:
        print()
        _print_point(point)
    print()
    for name, only in ((a.name, found.only_a), (b.name, found.only_b)):
        if only:
            _say(f"only {name} has {'; '.join(only)}")
    _say(_conclusion(found))


def _say(text: str) -> None:
    """Print a line whose words may be a server's."""
    print(harmless(text, sys.stdout))


def _print_differences(differences: Sequence[Difference]) -> None:
    unfair = [each for each in differences if each.weight == "unfair"]
    other = [each for each in differences if each.weight != "unfair"]
    if unfair:
        print("\nNot a fair comparison:")
        for each in unfair:
            _say(f"  {each.field}: {_both(each)}; {each.why}")
    if other:
        print("\nThe set-ups differ in:")
        for each in other:
            _say(f"  {each.field}: {_both(each)}")
    if not differences:
        print("\nNothing differs, not even the time: is this twice the same result?")


def _print_point(point: ComparedPoint) -> None:
    runs = " and ".join(f"{count} run{'' if count == 1 else 's'}" for count in point.runs)
    _say(f"{point.load}: {point.answers[0]:,} and {point.answers[1]:,} answers, {runs}")
    rows = [_HEADER, *(_row(change) for change in point.changes)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    for row in rows:
        first, *middle, last = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row[:-1], widths, strict=False))
        )
        print("  ".join(["", first, *middle, last, row[-1]]).rstrip())


def _row(change: Change) -> Sequence[str]:
    return (
        change.figure,
        _value(change, change.a),
        _value(change, change.b),
        _changed(change),
        _interval(change),
        "" if change.p_adjusted is None else _chance(change.p_adjusted),
        _verdict(change),
    )


def _value(change: Change, value: float | None) -> str:
    if value is None:
        return "-"
    if change.figure.endswith("_share"):
        return f"{value:.1%}"
    if "_per_s" in change.figure:
        return f"{number(value)}/s"
    return duration(value)


def _changed(change: Change) -> str:
    if change.ratio is not None:
        return f"{change.ratio:.3f} times"
    return "" if change.difference is None else f"{change.difference * 100:+.1f} points"


def _interval(change: Change) -> str:
    if change.interval is None:
        return ""
    low, high = change.interval.low, change.interval.high
    if change.ratio is not None:
        return f"{low:.3f} to {high:.3f}"
    return f"{low * 100:+.1f} to {high * 100:+.1f}"


def _chance(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _verdict(change: Change) -> str:
    if change.verdict in ("too little data", "not comparable"):
        return f"{change.verdict}: {change.why}"
    if change.verdict == "within noise":
        return change.verdict
    return f"{change.direction or 'no matter'}, {change.verdict}"


def _conclusion(found: Comparison) -> str:
    """What it comes to, and what it rests on."""
    every = [change for point in found.points for change in point.changes]
    methods = {change.method for change in every if change.method is not None}
    rests = {
        "repeats": "the spread of repeated runs",
        "pairs": "the requests of one run each, which were the same in both",
        "requests": "the requests of one run each",
    }
    on = " and ".join(text for method, text in rests.items() if method in methods)
    counts = f"{found.better} better, {found.worse} worse in B"
    part = 100 * found.threshold
    least = f", by {part:g} % or more (of shares {part:g} points)" if part else ""
    text = (
        f"{found.compared} figures compared: {counts}{least}. Chances are of so much or more if "
        f"nothing differed, adjusted for {found.compared} figures (Holm); below "
        f"{found.level:g} is beyond noise."
    )
    if on:
        text += f" Noise is judged by {on}."
    if methods - {"repeats"}:
        text += " One run does not know what differs between runs: --repeats 5 would."
    return text


def _both(each: Difference) -> str:
    """Both values; of long ones, what is from about where they differ."""
    if max(len(each.a), len(each.b)) <= _LONG:
        return f"{each.a} and {each.b}"
    pairs = enumerate(zip(each.a, each.b, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(each.a), len(each.b)))
    return f"{_from(each.a, same)} and {_from(each.b, same)}"


def _from(text: str, place: int) -> str:
    begin = text.rfind(" ", 0, max(0, place - _BEFORE)) + 1
    shown = text[begin : begin + _LONG]
    return ("... " if begin else "") + shown + ("..." if begin + _LONG < len(text) else "")
