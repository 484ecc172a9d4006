"""A program in a terminal of its own (pty), as a person has it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.waiting import PATIENCE_S, until

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """What a program writes, and what is typed. ``raw`` is all of its output so far."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self.raw = ""
        self._fd = fd
        self._seen = 0
        self._bytes = b""

    @property
    def text(self) -> str:
        """The output so far, without escape sequences."""
        return ESCAPES.sub("", self.raw)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def idle(self) -> None:
        """Wait until the program waits for a key.

        Between the echo of one and the wait for the next, Python's line editing takes note of a
        signal and hands it on with the next signal alone.
        """
        stat = Path(f"/proc/{self.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", PATIENCE_S, "it waits")

    def expect(self, text: str) -> str:
        """Wait until ``text`` comes after what was expected before; returns what came until
        then."""
        end = time.monotonic() + PATIENCE_S
        while True:
            shown = self.text
            at = shown.find(text, self._seen)
            if at >= 0:
                before = shown[self._seen : at]
                self._seen = at + len(text)
                return before
            alive = self._read(end - time.monotonic())
            assert alive, f"{text!r} did not come: {shown[self._seen :]!r}"

    def wait(self) -> int:
        """The exit code, once the program has ended."""
        end = time.monotonic() + PATIENCE_S
        while self._read(end - time.monotonic()):
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def _read(self, seconds: float) -> bool:
        """Take in some output; False at its end, and when there was none for so long."""
        if not select.select([self._fd], [], [], max(seconds, 0))[0]:
            return False
        try:
            new = os.read(self._fd, 1 << 16)
        except OSError:  # EIO: the program has closed the terminal
            return False
        self._bytes += new
        self.raw = self._bytes.decode(errors="replace")
        return bool(new)


@contextmanager
def in_terminal(
    words: Sequence[str], environ: Mapping[str, str], columns: int = 80
) -> Iterator[Terminal]:
    """``python -m WORDS`` in a terminal."""
    env = {
        **os.environ,
        "TERM": "xterm-256color",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    env.pop("NO_COLOR", None)
    env |= environ
    pid, fd = pty.fork()
    if pid == 0:
        # A test run in the background inherits an ignored SIGINT.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execvpe(sys.executable, [sys.executable, "-m", *words], env)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    terminal = Terminal(pid, fd)
    try:
        yield terminal
    finally:
        if terminal.pid:
            os.kill(terminal.pid, signal.SIGKILL)
            os.waitpid(terminal.pid, 0)
        os.close(fd)
