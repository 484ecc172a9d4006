"""How loading a model goes on, for whoever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TextIO

from penstock.cli.status_line import StatusLine, loading_text

_AGAIN_S: Final = 0.1


class LoadProgress:
    """``loading: weights [#####...] 25 % of 2.5 GB`` as a :class:`StatusLine`.

    To be called with the phase, the part of it that is done, from 0 to 1, and its bytes; 0 bytes
    where that is not known: a :data:`~penstock.interface.loading.ProgressCallback`. Within
    ``with``, a thread goes on showing what was told last, since some phases tell nothing for long.
    """

    def __init__(
        self, stream: TextIO, enabled: bool = True, say: Callable[[str], None] | None = None
    ) -> None:
        self._line = StatusLine(stream, enabled, say)
        self._told: tuple[str, float, int] | None = None
        self._ended = threading.Event()

    def __enter__(self) -> LoadProgress:
        thread = threading.Thread(target=self._go_on, name="penstock-progress", daemon=True)
        thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, phase: str, done: float, num_bytes: int) -> None:
        self._told = phase, done, num_bytes
        self._line.show(self._text)

    def print(self, text: str) -> None:
        """Write a line that stays, also where progress is not shown."""
        self._line.print(text)

    def close(self) -> None:
        """Remove the line; nothing is shown any more. Safe to repeat."""
        self._ended.set()
        self._line.close()

    def _go_on(self) -> None:
        while not self._ended.wait(_AGAIN_S):
            if self._told is not None:
                self._line.show(self._text)

    def _text(self) -> str:
        assert self._told is not None
        return loading_text(*self._told, self._line.rewrites)
