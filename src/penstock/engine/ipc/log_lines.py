"""The log of an engine's process, which its front end writes: with the time, the level and the form
of its own lines, where it has any."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from penstock.engine.ipc.wire import FrameSocket, Logged, encode_frame
from penstock.processes.frames import WireError


class LogLines(logging.Handler):
    """Sends what is logged to the front end; once that is gone, errors and warnings go to
    stderr."""

    def __init__(self, frames: FrameSocket) -> None:
        super().__init__()
        self._frames = frames

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record).encode("utf-8", "backslashreplace").decode()
        try:
            self._frames.send(encode_frame(Logged(record.levelno, record.name, text)))
        except (OSError, WireError):
            if logging.lastResort is not None:
                logging.lastResort.handle(record)


@contextlib.contextmanager
def logging_to(frames: FrameSocket) -> Iterator[None]:
    """Send the process's log to the front end while this context is open."""
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [LogLines(frames)]
    try:
        yield
    finally:
        root.handlers[:] = before
