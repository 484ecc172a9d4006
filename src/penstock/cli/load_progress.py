"""How loading a model goes on, for who waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

from penstock.terminal import columns

_FIRST_S: Final = 0.5
"""Seconds after which something is shown at all: small models are loaded by then."""
_REDRAW_S: Final = 0.1
_LINE_S: Final = 10.0
_CELLS: Final = 20


class LoadProgress:
    """``loading: weights [#####...] 25 % of 2.5 GB`` on a line of ``stream`` that rewrites itself.

    To be called with the phase, the part of it that is done, from 0 to 1, and its bytes; 0 bytes
    where that is not known (it is a :data:`~penstock.interface.loading.Watch`). Where ``stream`` is
    no terminal, there is a line every ten seconds, which goes to ``say`` if that is given. Within
    ``with``, a thread goes on showing what was told last, since some phases tell nothing for long;
    at its end the line is removed.
    """

    def __init__(
        self, stream: TextIO, enabled: bool = True, say: Callable[[str], None] | None = None
    ) -> None:
        self._stream = stream
        self._enabled = enabled
        self._rewrites = stream.isatty()
        self._say = say or self._print
        self._told: tuple[str, float, int] | None = None
        self._width = 0
        now = time.monotonic()
        self._next = now + (_FIRST_S if self._rewrites else _LINE_S)
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def __enter__(self) -> LoadProgress:
        if self._enabled:
            thread = threading.Thread(target=self._go_on, name="penstock-progress", daemon=True)
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, phase: str, done: float, num_bytes: int) -> None:
        self._told = phase, done, num_bytes
        self._show()

    def close(self) -> None:
        """Remove the line; nothing is shown any more. Safe to repeat."""
        with self._lock:
            self._enabled = False
            if self._width:
                self._stream.write("\r" + " " * self._width + "\r")
                self._stream.flush()
                self._width = 0
        self._ended.set()

    def _go_on(self) -> None:
        while not self._ended.wait(_REDRAW_S):
            self._show()

    def _show(self) -> None:
        with self._lock:
            now = time.monotonic()
            if not self._enabled or self._told is None or now < self._next:
                return
            line = self._line(*self._told)
            if self._rewrites:
                line = line[: columns(self._stream) - 1]
                self._stream.write("\r" + line.ljust(self._width))
                self._stream.flush()
                self._width = len(line)
                self._next = now + _REDRAW_S
            else:
                self._say(line)
                self._next = now + _LINE_S

    def _line(self, phase: str, done: float, num_bytes: int) -> str:
        line = f"loading: {phase}"
        if num_bytes:
            cells = round(done * _CELLS)
            bar = f" [{'#' * cells}{'.' * (_CELLS - cells)}]" if self._rewrites else ""
            line += f"{bar} {done:.0%} of {_size(num_bytes)}".replace("%", " %")
        return line

    def _print(self, line: str) -> None:
        self._stream.write(f"penstock: {line}\n")
        self._stream.flush()


def _size(num_bytes: int) -> str:
    if num_bytes < 10**9:
        return f"{num_bytes / 1e6:,.0f} MB"
    return f"{num_bytes / 1e9:,.1f} GB"
