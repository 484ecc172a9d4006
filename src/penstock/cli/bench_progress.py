"""How a benchmark goes on, on standard error, and the Ctrl-C that keeps what is done."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from penstock.bench.progress import Stopped
from penstock.cli.status_line import StatusLine, bar, loading_text
from penstock.interrupts import Interrupts


class BenchProgress:
    """``run 2 of 6 [#####......] 25 %, 57.1 tokens/s`` as a :class:`StatusLine`.

    It is a :class:`~penstock.bench.progress.Progress`. From the first run on, Ctrl-C stops the
    benchmark after the step that runs; a second one ends the program.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._line = StatusLine(stream or sys.stderr)
        self._interrupts: Interrupts | None = None
        self._run, self._total, self._unit = "", 0, ""
        self._done, self._start = 0, 0.0

    def __enter__(self) -> BenchProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self._line.close()
        if self._interrupts is not None:
            self._interrupts.__exit__()

    @property
    def stopped(self) -> bool:
        """Whether Ctrl-C has stopped the benchmark."""
        return self._interrupts is not None and self._interrupts.asked

    def load(self, phase: str, done: float, num_bytes: int) -> None:
        self._line.show(lambda: loading_text(phase, done, num_bytes, self._line.rewrites))

    def begin(self, run: str, total: int, unit: str = "tokens") -> None:
        if self._interrupts is None:
            self._interrupts = Interrupts(interruptible=False)
            self._interrupts.__enter__()
        self._run, self._total, self._unit = run, total, unit
        self._done, self._start = 0, time.perf_counter()
        self.advance(0)

    def advance(self, count: int) -> None:
        if self.stopped:
            raise Stopped
        self._done += count
        self._line.show(self._text)

    def _text(self) -> str:
        part = min(self._done / max(self._total, 1), 1.0)
        seconds = time.perf_counter() - self._start
        rate = f", {self._done / seconds:,.1f} {self._unit}/s" if self._done and seconds else ""
        return f"{self._run}{bar(part) if self._line.rewrites else ''} {100 * part:.0f} %{rate}"
