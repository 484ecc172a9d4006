"""A progress line on a terminal."""

from __future__ import annotations

import time
from typing import TextIO

_REDRAW_S = 0.1


class Progress:
    """``3/8 prompts, 120 tokens, 57.1 tokens/s`` on one line of ``stream`` that rewrites itself.

    Writes nothing unless ``stream`` is a terminal and ``enabled``.
    """

    def __init__(self, total: int, stream: TextIO, enabled: bool) -> None:
        self._total = total
        self._stream = stream
        self._enabled = enabled and stream.isatty()
        self._start = time.perf_counter()
        self._drawn = 0.0
        self._width = 0

    def show(self, done: int, tokens: int) -> None:
        now = time.perf_counter()
        if not self._enabled or now - self._drawn < _REDRAW_S:
            return
        self._drawn = now
        rate = tokens / (now - self._start)
        line = f"{done}/{self._total} prompts, {tokens:,} tokens, {rate:,.1f} tokens/s"
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)

    def clear(self) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0
