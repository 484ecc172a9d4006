"""Ctrl-C while an engine works."""

from __future__ import annotations

import signal
import sys
import termios
from collections.abc import Callable
from types import FrameType


class Interrupts:
    """A block within which Ctrl-C asks for the work to stop (:attr:`asked`).

    An engine in this process must not be left within a step, so nothing is raised for the first
    one unless ``interruptible``. A second one raises KeyboardInterrupt.
    """

    def __init__(self, interruptible: bool) -> None:
        self.asked = False
        self._interruptible = interruptible

    def __enter__(self) -> Interrupts:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:  # so that a shell's job in the background goes on
            signal.signal(signal.SIGINT, self._interrupted)
        self._restore = _no_echo()
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()
        signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self.asked or self._interruptible:
            raise KeyboardInterrupt
        self.asked = True


def _no_echo() -> Callable[[], None]:
    """Keep the terminal from writing what is typed meanwhile into the text; returns what undoes
    it."""
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        changed = termios.tcgetattr(fd)
        changed[3] &= ~(termios.ECHO | termios.ECHOCTL)
        termios.tcsetattr(fd, termios.TCSADRAIN, changed)
    except (AttributeError, OSError, ValueError, termios.error):  # no terminal
        return lambda: None
    return lambda: termios.tcsetattr(fd, termios.TCSADRAIN, before)
