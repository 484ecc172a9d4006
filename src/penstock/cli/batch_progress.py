"""Progress of a batch: a line that rewrites itself on a terminal, and lines elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

from penstock.cli.status_line import StatusLine, bar


class BatchProgress:
    """``3/8 prompts [#######.............], 120 tokens, 57.1 tokens/s`` as a :class:`StatusLine`,
    if ``enabled``."""

    def __init__(self, total: int, stream: TextIO, enabled: bool) -> None:
        self._total = total
        self._line = StatusLine(stream, enabled)
        self._start = time.perf_counter()

    def show(self, done: int, tokens: int) -> None:
        self._line.show(lambda: self._text(done, tokens))

    def clear(self) -> None:
        """Remove the line, before something else is written."""
        self._line.clear()

    def _text(self, done: int, tokens: int) -> str:
        rate = tokens / (time.perf_counter() - self._start)
        shown = bar(done / max(self._total, 1)) if self._line.rewrites else ""
        return f"{done}/{self._total} prompts{shown}, {tokens:,} tokens, {rate:,.1f} tokens/s"
