"""Tells two load tests' set-ups apart: what differs besides their figures, and what of it makes
comparing them unfair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from penstock.bench.load.document import LoadReport
from penstock.bench.load.load import Load
from penstock.bench.load.result import Measured, Result
from penstock.service_level import level_of

Weight = Literal["unfair", "subject", "detail"]

_OWN_TEXTS: Final = frozenset({"text_seed"})
"""What is meant to differ: texts of one test may not be in a server's cache for the next."""
_ALIKE: Final = 0.02
"""Lengths whose means differ by less are the same."""
_CACHED: Final = 0.05
"""Parts of the prompts in the cache that differ by less are the same."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A field of the set-up, and what it was in both."""

    field: str
    a: str
    b: str
    weight: Weight
    """``unfair``: figures are not of the same task; ``subject``: what is usually compared, such as
    the model or the server; ``detail``: all else."""
    why: str = ""
    """What it does to the comparison."""


def differences(a: LoadReport, b: LoadReport) -> list[Difference]:
    """Everything that differs, what is unfair first."""
    found = [*_tasks(a, b), *_answers(a, b), *_subjects(a, b), *_details(a, b)]
    order = ("unfair", "subject", "detail")
    return sorted(found, key=lambda difference: order.index(difference.weight))


def _tasks(a: LoadReport, b: LoadReport) -> Iterator[Difference]:
    for name, one, other in _unequal(a.workload, b.workload):
        if name in _OWN_TEXTS:
            continue
        why = {
            "seed": "lengths and times of arrival are drawn otherwise",
            "warmup": "one of them began with a warmer server",
        }.get(name, "another task was measured")
        yield Difference(field=f"workload.{name}", a=one, b=other, weight="unfair", why=why)
    for name, one, other, why in (
        ("slo", _level(a), _level(b), "goodput means another thing"),
        ("endpoint", a.server.endpoint, b.server.endpoint, "only chats have a template's tokens"),
        (
            "server.tells_usage",
            _text(a.server.tells_usage),
            _text(b.server.tells_usage),
            "tokens are those that a server counts, or the chunks that came",
        ),
        (
            "text.exact",
            _text(a.text.exact),
            _text(b.text.exact),
            "prompts have other lengths than asked for",
        ),
    ):
        if one != other:
            yield Difference(field=name, a=one, b=other, weight="unfair", why=why)
    ours, theirs = _arrivals(a), _arrivals(b)
    for load in ours.keys() & theirs.keys():
        if ours[load] != theirs[load]:
            yield Difference(
                field=f"arrivals at {load}",
                a=ours[load],
                b=theirs[load],
                weight="unfair",
                why="requests came otherwise",
            )
            break
    if a.partial != b.partial:
        yield Difference(
            field="partial",
            a=_text(a.partial),
            b=_text(b.partial),
            weight="unfair",
            why="one was stopped, and lacks what was slowest then",
        )


def _answers(a: LoadReport, b: LoadReport) -> Iterator[Difference]:
    """What the server made of the task: other lengths, other shares of the cache.

    A load's figures are means over its repeats; of several loads that one is named where they
    differ most.
    """
    sides = list(_sides(a, b))
    for quantity, why in (
        ("input_tokens", "the same texts have other numbers of tokens"),
        ("output_tokens", "whole answers and tokens per second are of other answers"),
    ):
        where, one, other = _furthest(sides, f"{quantity}.mean", relative=True)
        if abs(one - other) > _ALIKE * max(one, other):
            yield Difference(
                field=f"mean {quantity}{where}",
                a=f"{one:,.1f}",
                b=f"{other:,.1f}",
                weight="unfair",
                why=why,
            )
    where, one, other = _furthest(sides, "cached_share", relative=False)
    if abs(one - other) > _CACHED:
        yield Difference(
            field=f"prompt tokens in the cache{where}",
            a=f"{one:.0%}",
            b=f"{other:.0%}",
            weight="unfair",
            why="cached prompts need no prefill",
        )


def _sides(a: LoadReport, b: LoadReport) -> Iterator[tuple[str, Measured, Measured]]:
    """What is compared with what: the loads that both have, else all that was measured."""
    ours, theirs = ({each.load: each for each in Result("", of).loads} for of in (a, b))
    both = [load for load in ours if load in theirs]
    if both:
        yield from ((f" at {load}", ours[load], theirs[load]) for load in both)
    else:
        one, other = (Measured("", report.runs[0].load, report.runs) for report in (a, b))
        yield "", one, other


def _furthest(
    sides: Sequence[tuple[str, Measured, Measured]], figure: str, relative: bool
) -> tuple[str, float, float]:
    """Where a figure differs most, and what it is there; zeros where no load has it in both."""
    found = ("", 0.0, 0.0)
    most = 0.0
    for where, a, b in sides:
        one, other = a.estimate(figure), b.estimate(figure)
        if one is None or other is None:
            continue
        apart = abs(one.value - other.value)
        if relative and apart:
            apart /= max(one.value, other.value)
        if apart > most:
            most, found = apart, (where, one.value, other.value)
    return found


def _subjects(a: LoadReport, b: LoadReport) -> Iterator[Difference]:
    for name in ("model", "owned_by", "max_model_len", "ignores_eos", "url"):
        one, other = getattr(a.server, name), getattr(b.server, name)
        if one != other:
            yield Difference(field=f"server.{name}", a=_text(one), b=_text(other), weight="subject")
    for name, one_text, other_text in _unequal(a.machine, b.machine):
        if name in ("cpu_model", "physical_cores", "logical_cores", "memory_bytes", "cpu_quota"):
            yield Difference(field=f"machine.{name}", a=one_text, b=other_text, weight="subject")


def _details(a: LoadReport, b: LoadReport) -> Iterator[Difference]:
    for name in ("kernel", "python", "load_average_1m"):
        one, other = a.machine.get(name), b.machine.get(name)
        if one != other:
            yield Difference(field=f"machine.{name}", a=_text(one), b=_text(other), weight="detail")
    ours, theirs = (_mapping(each.machine.get("packages")) for each in (a, b))
    for name, one_text, other_text in _unequal(ours, theirs):
        yield Difference(field=f"package {name}", a=one_text, b=other_text, weight="detail")
    for name, one_text, other_text in (
        ("finished", a.finished, b.finished),
        ("command", a.command, b.command),
    ):
        if one_text != other_text:
            yield Difference(field=name, a=one_text, b=other_text, weight="detail")


def _unequal(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((*ours, *theirs)):
        if ours.get(name) != theirs.get(name):
            yield name, _text(ours.get(name)), _text(theirs.get(name))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _arrivals(report: LoadReport) -> dict[Load, str]:
    return {run.load: run.arrivals for run in report.runs}


def _level(report: LoadReport) -> str:
    return level_of(report.slo) or "none"


def _text(value: object) -> str:
    """A value in a few words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (dict, list)):
        return msgspec.json.encode(value).decode()
    return str(value)
