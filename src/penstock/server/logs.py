"""The server's log: text for people or JSON for collectors, written by a thread of its own.

What writes may block (a pipe that nobody reads) or fail (a full disk); the server must do neither.
So lines go through a bounded queue, and those that find it full, or cannot be written, are counted
and dropped. The next line that can be written says how many were. A line that comes more than a few
times within a second is left out too, and reported with its number once the second is over; lines
of requests never are."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.server.repeats import Line, Repeats
from penstock.terminal import json_for_terminals, visible

LEVELS = ("debug", "info", "warning", "error")
QUEUE_LINES = 10_000
"""About two megabytes of text at most."""

LogFormat = Literal["text", "json"]


@dataclass(frozen=True)
class LogOptions:
    format: LogFormat = "text"
    level: str = "info"
    access: bool = True
    """Whether to write an access-log line for each request."""
    fd: int = 2


@contextlib.contextmanager
def logging_to(options: LogOptions) -> Iterator[LineWriter]:
    """Send the process's log to ``options.fd`` while this context is open."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    access = logging.getLogger("penstock.access")
    writer = LineWriter(options.fd)
    writer.setFormatter(JsonFormatter() if options.format == "json" else TextFormatter())
    root.handlers[:] = [writer]
    set_level(options.level)
    access.disabled = not options.access
    try:
        yield writer
    finally:
        writer.close()
        access.disabled = False
        root.setLevel(before[0])
        root.handlers[:] = before[1]


def set_level(level: str) -> None:
    """Set all log levels; third-party loggers stay at WARNING unless the level is debug."""
    root = logging.getLogger()
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    logging.getLogger("penstock").setLevel(level.upper())


class LineWriter(logging.Handler):
    """Queues lines; a thread writes them to a file descriptor."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._lines: queue.Queue[bytes | None] = queue.Queue(QUEUE_LINES)
        self.dropped = 0
        """Number of lines lost since the start."""
        self._reported = 0
        self._repeats = Repeats()
        self._thread = threading.Thread(target=self._write_all, name="penstock-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record. Called by one thread at a time: ``Handler.handle`` holds the lock."""
        self._sum_up()
        waiting = self._repeats.waiting
        if _fields(record) or self._repeats.admits(_line(record)):
            self._queue(record)
        elif not waiting:
            with contextlib.suppress(queue.Full):
                self._lines.put_nowait(b"")  # the thread may be asleep, and has to look after it

    def close(self) -> None:
        """Write the queued lines, waiting at most one second."""
        with self._locked():
            self._sum_up(at_once=True)
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(1.0)
        super().close()

    def _queue(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # a defect in a log call must not reach its caller
            line = f"a log line could not be made: {error!r} ({record.msg!r})"
        try:
            self._lines.put_nowait(line.encode("utf-8", "backslashreplace") + b"\n")
        except queue.Full:
            self.dropped += 1

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def _sum_up(self, at_once: bool = False) -> None:
        """Log how many repeated lines were left out in a past second. The lock must be held."""
        for line, count in self._repeats.over(at_once):
            text = f"{line.text} (left out {count} times more within a second)"
            self._queue(logging.LogRecord(line.logger, line.level, "", 0, text, None, None))

    def _write_all(self) -> None:
        while True:
            try:
                line = self._lines.get(timeout=1.0 if self._repeats.waiting else None)
            except queue.Empty:
                with self._locked():
                    self._sum_up()
                continue
            if line is None:
                return
            missing = self.dropped - self._reported
            if missing:
                line = b"penstock: %d log lines were dropped\n" % missing + line
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                self.dropped += 1
            else:
                self._reported += missing


def _line(record: logging.LogRecord) -> Line:
    """The content of ``record`` without its time, by which repeated lines are recognized."""
    try:
        text = record.getMessage()
    except Exception:  # reported when it is formatted
        text = str(record.msg)
    error = repr(record.exc_info[1]) if record.exc_info else ""
    return Line(record.name, record.levelno, text, error)


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO penstock.access: POST /v1/... key=value ...``"""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if not message.isprintable():  # a client's path may hold what moves a terminal's cursor
            message = _json(message)[1:-1]
        text = f"{_when(record)} {record.levelname} {record.name}: {message}"
        for name, value in _fields(record).items():
            if name not in ("method", "path", "status"):  # part of the message
                text += f" {name}={_plain(value)}"
        if record.exc_info:
            text += "\n" + visible(self.formatException(record.exc_info))
        return text


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON; the fields of a request are members of the object."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return _json(entry)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the ``fields`` of ``extra={"fields": ...}``."""
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _plain(value: object) -> str:
    """Format a value for a text line, quoted where it has spaces or could be mistaken for a
    line."""
    text = value if isinstance(value, str) else _json(value)
    return text if text.isprintable() and " " not in text and text else _json(text)


def _json(value: object) -> str:
    return json_for_terminals(json.dumps(value, default=str))


def _when(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"
