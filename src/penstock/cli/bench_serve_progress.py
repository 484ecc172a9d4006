"""How a load test goes on: a table in a terminal that rewrites itself, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO

from penstock.cli.status_line import StatusLine, bar
from penstock.interrupts import Interrupts
from penstock.terminal import columns

if TYPE_CHECKING:
    from penstock.bench.load.campaign import LoadPlan
    from penstock.bench.load.document import LoadedRun
    from penstock.bench.load.record import RequestRecord
    from penstock.bench.load.run import LoadRun

_DRAWS: Final = 5
"""Looks between two drawings: two a second, of which a stream notices little."""
_RECENT_S: Final = 10.0


class LiveTable:
    """Lines at the end of a terminal, each drawing in the place of the one before."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = 0

    def draw(self, lines: Sequence[str]) -> None:
        width = columns(self._stream) - 1
        text = "".join(f"\x1b[2K{line[:width]}\n" for line in lines)
        self._stream.write(self._up() + text)
        self._stream.flush()
        self._shown = len(lines)

    def clear(self) -> None:
        if self._shown:
            self._stream.write(self._up() + "\x1b[J")
            self._stream.flush()
            self._shown = 0

    def _up(self) -> str:
        return f"\x1b[{self._shown}A" if self._shown else ""


class ServeProgress:
    """A :class:`~penstock.bench.load.campaign.LoadProgress`. Ctrl-C stops the run and keeps what is
    done; a second one ends the program."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._table = LiveTable(self._stream) if self._stream.isatty() else None
        self._line = StatusLine(self._stream)
        self._interrupts = Interrupts(interruptible=False)
        self._name = ""
        self._total: int | None = None
        self._duration: float | None = None
        self._looks = 0
        self._past: list[str] = []

    def __enter__(self) -> ServeProgress:
        self._interrupts.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._table is not None:
            self._table.clear()
        self._line.close()
        self._interrupts.__exit__()

    @property
    def stopped(self) -> bool:
        """Whether Ctrl-C has stopped it."""
        return self._interrupts.asked

    def begin(self, name: str, plan: LoadPlan, run: LoadRun) -> None:
        self._name = name
        self._total = plan.conversations
        self._duration = plan.duration_s
        if self._total is None and not plan.workload.endless:
            self._total = len(getattr(plan.workload, "recorded", ())) or None

    def end(self, run: LoadedRun) -> None:
        self._past = [*self._past[-5:], run_line(self._name, run)]

    def look(self, run: LoadRun) -> bool:
        self._looks += 1
        if self._table is None:
            self._line.show(lambda: self._summary(run))
        elif self._looks % _DRAWS == 0:
            self._table.draw([*self._past, *self._rows(run)])
        return self._interrupts.asked

    def _summary(self, run: LoadRun) -> str:
        failed = sum(not record.ok for record in run.records)
        wrong = f", {failed} failed" if failed else ""
        done = bar(self._part(run)) if self._line.rewrites else f" {100 * self._part(run):.0f} %"
        return f"{self._name}:{done}, {len(run.records)} done, {len(run.open)} open{wrong}"

    def _part(self, run: LoadRun) -> float:
        """How much of the run is done, from 0 to 1."""
        by_count = len(run.records) / self._total if self._total else 0.0
        by_time = run.seconds / self._duration if self._duration else 0.0
        return min(max(by_count, by_time), 1.0)

    def _rows(self, run: LoadRun) -> list[str]:
        recent = _recent(run.records, run.seconds)
        tokens = sum(record.tokens for record in recent)
        seconds = min(_RECENT_S, run.seconds) or 1.0
        failed = sum(not record.ok for record in run.records)
        whole = [record for record in recent if record.ok]
        return [
            f"{self._name}{bar(self._part(run))} {run.seconds:.0f} s",
            f"  {len(run.records)} done, {len(run.open)} open, {failed} failed   "
            f"{len(recent) / seconds:.1f} requests/s, {tokens / seconds:,.0f} tokens/s",
            f"  last {_RECENT_S:.0f} s, ms     p50        p99",
            _row("first token", [r.ttft_s for r in whole]),
            _row("per token", [r.tpot_s for r in whole]),
            _row("whole answer", [r.e2el_s for r in whole]),
        ]


def run_line(name: str, run: LoadedRun) -> str:
    """One line of a run that has ended."""
    whole = run.whole
    rate = whole.output_tokens_per_s or 0.0
    parts = [f"{whole.completed} answers", f"{rate:,.0f} tokens/s"]
    for label, key in (("first token", "ttft"), ("per token", "tpot")):
        if (found := whole.distributions.get(key)) is not None:
            parts.append(f"{label} p99 {found.summary.p99 * 1e3:,.1f} ms")
    if whole.good_share is not None:
        parts.append(f"{whole.good_share:.1%} good")
    if whole.failed:
        parts.append(f"{whole.failed} failed")
    return f"{name}: " + ", ".join(parts)


def _recent(records: Sequence[RequestRecord], now: float) -> list[RequestRecord]:
    """Those of the last seconds; records are in the order of their ends."""
    found: list[RequestRecord] = []
    for record in reversed(records):
        if record.end_s < now - _RECENT_S or len(found) == 2000:
            break
        found.append(record)
    return found


def _row(name: str, values: Sequence[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return f"  {name:<14}       -          -"
    p50, p99 = (known[min(int(part * len(known)), len(known) - 1)] * 1e3 for part in (0.5, 0.99))
    return f"  {name:<14} {p50:>9,.1f}  {p99:>9,.1f}"
