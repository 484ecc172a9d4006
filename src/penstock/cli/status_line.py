"""A line of a terminal that rewrites itself, for whoever waits; elsewhere a line now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

from penstock.terminal import columns, harmless

_FIRST_S: Final = 0.5
"""Seconds after which something is shown at all on a terminal: small work is done by then."""
_REDRAW_S: Final = 0.1
_LINE_S: Final = 10.0
_CELLS: Final = 20


class StatusLine:
    """Shows the latest of many texts on ``stream``: ten a second at most on a terminal, where each
    takes the place of the one before, and one every ten seconds elsewhere.

    ``say`` is given the lines of what is no terminal, in place of the stream. Any thread may call
    it.
    """

    def __init__(
        self,
        stream: TextIO,
        enabled: bool = True,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.rewrites = stream.isatty()
        self._stream = stream
        self._enabled = enabled
        self._say = say or self._print
        self._width = 0
        self._next = time.monotonic() + (_FIRST_S if self.rewrites else _LINE_S)
        self._lock = threading.Lock()

    def show(self, make_text: Callable[[], str]) -> None:
        """Show what ``make_text`` returns, if it is time to show anything."""
        with self._lock:
            now = time.monotonic()
            if not self._enabled or now < self._next:
                return
            self._next = now + (_REDRAW_S if self.rewrites else _LINE_S)
            text = make_text()
            if not self.rewrites:
                self._say(text)
                return
            text = text[: columns(self._stream) - 1]
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)

    def clear(self) -> None:
        """Remove the line, before something else is written."""
        with self._lock:
            self._remove()

    def print(self, text: str) -> None:
        """Write a line that stays, in place of the one that is shown."""
        with self._lock:
            self._remove()
            self._print(harmless(text, self._stream))

    def close(self) -> None:
        """Remove the line; nothing is shown any more."""
        self._enabled = False
        self.clear()

    def _remove(self) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def _print(self, text: str) -> None:
        self._stream.write(f"penstock: {text}\n")
        self._stream.flush()


def bar(done: float) -> str:
    """``[#####......]``, with a space before it, of the part that is done, from 0 to 1."""
    cells = round(done * _CELLS)
    return f" [{'#' * cells}{'.' * (_CELLS - cells)}]"


def loading_text(phase: str, done: float, num_bytes: int, with_bar: bool) -> str:
    """What is shown of loading a model: its phase, the part of that, and its bytes if known."""
    if not num_bytes and done in (0, 1):  # a phase that says nothing of its parts
        return f"loading: {phase}"
    of = f" of {_size(num_bytes)}" if num_bytes else ""
    return f"loading: {phase}{bar(done) if with_bar else ''} {100 * done:.0f} %{of}"


def _size(num_bytes: int) -> str:
    if num_bytes < 10**9:
        return f"{num_bytes / 1e6:,.0f} MB"
    return f"{num_bytes / 1e9:,.1f} GB"
