"""What ``penstock tune`` prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock.cli.size_table import aligned, time_text
from penstock.profile import Figure, Profile, Served
from penstock.terminal import harmless
from penstock.threads import format_count
from penstock.tune.choice import Choice, Finalist
from penstock.tune.search import Found
from penstock.tune.simulator import Simulator
from penstock.tune.space import Space

_HEAD: Final = (
    *("config", "", "good/s", "good", "refused", "out tok/s"),
    *("TTFT p99", "TPOT p99", "e2e p99"),
)
_SHOWN_REFUSALS: Final = 3


def print_tuning(
    profile: Profile,
    finalists: Sequence[Finalist],
    choice: Choice,
    found: Found,
    space: Space,
    simulator: Simulator,
    path: Path,
) -> None:
    """Print the finalists, predicted beside measured, what was chosen, and what that rests on."""
    for line in _lines(profile, finalists, choice, found, space, simulator, path):
        print(harmless(line, sys.stdout))


def _lines(
    profile: Profile,
    finalists: Sequence[Finalist],
    choice: Choice,
    found: Found,
    space: Space,
    simulator: Simulator,
    path: Path,
) -> Iterator[str]:
    threads = format_count(profile.made_for.machine.threads)
    yield f"model    {profile.made_for.model.name}, {threads}"
    yield f"load     {profile.made_for.workload}"
    if profile.slo:
        yield f"SLO      {' '.join(profile.slo)}"
    tried = ", ".join(each.option for each in space.dimensions)
    yield f"search   {found.tried} of {space.size:,} configurations ({tried})"
    refused = list(found.refused.items())
    for name, why in refused[:_SHOWN_REFUSALS]:
        yield f"         {name} cannot run: {why}"
    if len(refused) > _SHOWN_REFUSALS:
        yield f"         and {len(refused) - _SHOWN_REFUSALS} more cannot run"
    yield ""
    rows: list[tuple[str, ...]] = [_HEAD]
    for each in finalists:
        rows.append((each.name, "predicted", *_cells(each.predicted)))
        if each.measured is not None:
            rows.append(("", "measured", *_cells(each.measured)))
    yield from aligned(rows, left=2)
    yield ""
    how = "by measurement" if choice.verified else "by simulation, not measured"
    gain = "" if choice.gain is None else f", {choice.gain:.2f} times the default's"
    yield f"chosen   {choice.chosen.name}, {how}{gain}"
    for note in (*profile.notes, *_rests(simulator)):
        yield f"note     {note}"
    model = choice.chosen.candidate.engine.model
    changed = f"{model} " if model != space.default.engine.model else ""
    yield f"written  {path}; use it: penstock serve {changed}--profile {path}"


def _rests(simulator: Simulator) -> Iterator[str]:
    """What predictions rest on."""
    for each in simulator.calibrations:
        if each.checked is not None:
            yield f"the calibration of {each.made}: {each.checked}"


def _cells(served: Served) -> tuple[str, ...]:
    return (
        _figure(served.goodput_per_s),
        _share(served.good_share),
        _share(served.failed_share),
        _figure(served.output_tokens_per_s),
        *map(_time, (served.ttft_p99, served.tpot_p99, served.e2el_p99)),
    )


def _figure(figure: Figure | None) -> str:
    return "-" if figure is None else str(figure)


def _share(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.mean:.1%}"


def _time(figure: Figure | None) -> str:
    return "-" if figure is None else time_text(figure.mean)
