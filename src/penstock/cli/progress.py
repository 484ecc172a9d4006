"""Progress of a batch: a line that rewrites itself on a terminal, and lines elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

_REDRAW_S = 0.1
_LINE_S = 10.0


class Progress:
    """``3/8 prompts, 120 tokens, 57.1 tokens/s`` on ``stream``, if ``enabled``.

    On a terminal the line rewrites itself. Elsewhere there is one every ten seconds.
    """

    def __init__(self, total: int, stream: TextIO, enabled: bool) -> None:
        self._total = total
        self._stream = stream
        self._enabled = enabled
        self._rewrites = stream.isatty()
        self._start = time.perf_counter()
        self._drawn = 0.0 if self._rewrites else self._start
        self._width = 0

    def show(self, done: int, tokens: int) -> None:
        now = time.perf_counter()
        pause = _REDRAW_S if self._rewrites else _LINE_S
        if not self._enabled or now - self._drawn < pause:
            return
        self._drawn = now
        rate = tokens / (now - self._start)
        line = f"{done}/{self._total} prompts, {tokens:,} tokens, {rate:,.1f} tokens/s"
        if self._rewrites:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the line, before something else is written."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0
