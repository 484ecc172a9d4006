"""Records a session in a terminal as an animated SVG: see README.md beside this file."""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import struct
import termios
import time
from itertools import groupby
from pathlib import Path

import pyte

from screen_svg import Frame, Line, Run, animated_svg

PROMPT = "$ "
ASKS = ">>> "
KEY_S = 0.04
"""Seconds between two keys that are typed."""
LIMIT_S = 60
FRAME_S = 0.1
"""Seconds between two frames at least."""


class Recorder:
    """A shell in a terminal, and the frames of its screen."""

    def __init__(self, columns: int, rows: int) -> None:
        self.frames: list[Frame] = []
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        pid, self._fd = pty.fork()
        if pid == 0:
            environ = {**os.environ, "PS1": PROMPT, "TERM": "xterm-256color"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile"], environ)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._start = time.monotonic()

    def wait_for(self, prompt: str) -> None:
        """Show what comes until the cursor stands behind ``prompt``, alone on its line."""
        end = time.monotonic() + LIMIT_S
        while self._line() != prompt.rstrip():
            if time.monotonic() > end:
                raise SystemExit(f"{prompt!r} did not come: {self._screen.display}")
            self._show(FRAME_S)
        self._show(0.8)

    def type(self, text: str) -> None:
        for key in text:
            os.write(self._fd, key.encode())
            self._show(KEY_S)
        self._show(0.3)
        os.write(self._fd, b"\r")
        self._show(FRAME_S)

    def _line(self) -> str:
        return str(self._screen.display[self._screen.cursor.y]).rstrip()

    def _show(self, seconds: float) -> None:
        """Take in what is written for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                self._stream.feed(os.read(self._fd, 1 << 16))
        lines = tuple(_line(self._screen, row) for row in range(self._screen.lines))
        if not self.frames or self.frames[-1].lines != lines:
            self.frames.append(Frame(time.monotonic() - self._start, lines))


def _line(screen: pyte.Screen, row: int) -> Line:
    cells = [screen.buffer[row][column] for column in range(screen.columns)]
    runs = []
    column = 0
    for look, group in groupby(cells, key=lambda cell: (cell.fg, cell.bold, cell.italics)):
        text = "".join(cell.data for cell in group)
        if text.strip():
            runs.append(Run(column, text.rstrip(), *look))
        column += len(text)
    return tuple(runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("lines", nargs="+", help="what is typed; behind '>>> ' when that asks")
    parser.add_argument("--columns", type=int, default=84)
    parser.add_argument("--rows", type=int, default=24)
    args = parser.parse_args()
    recorder = Recorder(args.columns, args.rows)
    for line in args.lines:
        prompt = ASKS if line.startswith(ASKS) else PROMPT
        recorder.wait_for(prompt)
        recorder.type(line.removeprefix(prompt))
    recorder.wait_for(PROMPT)
    args.out.write_text(animated_svg(recorder.frames, args.columns, args.rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
