"""How loading a model goes on, for who waits for it."""

from __future__ import annotations

import shutil
import time
from typing import Final, TextIO

_FIRST_S: Final = 0.5
"""Seconds after which something is shown at all: small models are loaded by then."""
_REDRAW_S: Final = 0.1
_LINE_S: Final = 10.0
_CELLS: Final = 20


class LoadProgress:
    """``loading: weights [#####...] 25 % of 2.5 GB`` on a line of ``stream`` that rewrites itself.

    Where that is no terminal, there is a line every ten seconds. To be called with the phase, the
    part of it that is done, from 0 to 1, and its bytes; 0 bytes where that is not known.
    """

    def __init__(self, stream: TextIO, enabled: bool = True) -> None:
        self._stream = stream
        self._enabled = enabled
        self._rewrites = stream.isatty()
        self._width = 0
        now = time.monotonic()
        self._next = now + (_FIRST_S if self._rewrites else _LINE_S)

    def __call__(self, phase: str, done: float, num_bytes: int) -> None:
        now = time.monotonic()
        if not self._enabled or now < self._next:
            return
        line = f"loading: {phase}"
        if num_bytes:
            cells = round(done * _CELLS)
            bar = f" [{'#' * cells}{'.' * (_CELLS - cells)}]" if self._rewrites else ""
            line += f"{bar} {done:.0%} of {_size(num_bytes)}".replace("%", " %")
        if self._rewrites:
            line = line[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
            self._next = now + _REDRAW_S
        else:
            self._stream.write(f"penstock: {line}\n")
            self._next = now + _LINE_S
        self._stream.flush()

    def clear(self) -> None:
        """Remove the line; to be called at the end, whatever happened."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


def _size(num_bytes: int) -> str:
    if num_bytes < 10**9:
        return f"{num_bytes / 1e6:,.0f} MB"
    return f"{num_bytes / 1e9:,.1f} GB"
