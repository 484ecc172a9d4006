"""The parent process: it holds the listening socket and restarts a server that dies."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.processes.family import adopt_orphans, describe_exit, end_with_parent
from penstock.processes.restarts import RestartPolicy

if TYPE_CHECKING:
    from penstock.server.logs import LogFormat

ORPHANS_S = 30.0
"""Seconds to wait for the remaining children of a dead server: its engine's memory must be free
first."""
LOG_WAIT_S = 1.0
"""Seconds after which a line is dropped if the log cannot be written."""

_WATCHED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)
_STDERR = 2


@dataclass(frozen=True)
class GuardOptions(RestartPolicy):
    """When a dead server is restarted, by the rules for engines. It lives from being ready."""

    log_format: LogFormat = "text"
    hang_up: bool = False
    """Whether SIGHUP is passed on to the server, which reads its configuration again; otherwise it
    ends the guardian."""


class Life:
    """One run of the server, as its own process sees it; reports its state to the guardian."""

    def __init__(self, restarts: int, pipe: int) -> None:
        self.restarts = restarts
        """Number of servers that died before this one."""
        self._pipe = pipe

    def ready(self) -> None:
        """Report that requests are served: from now on, a death causes a restart."""
        os.write(self._pipe, b"ready %f\n" % time.monotonic())

    def over(self) -> None:
        """Report that from now on any exit is intended and causes no restart."""
        os.write(self._pipe, b"over\n")


@dataclass(frozen=True)
class _Death:
    pid: int
    code: int
    """The exit code; negative for a signal."""
    ready_at: float | None
    over: bool

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        hint = " (if nobody killed it, memory ran out)" if self.code == -signal.SIGKILL else ""
        return f"the server's process (pid {self.pid}) {describe_exit(self.code)}{hint}"


class Guardian:
    """Runs a server in a child process, and starts it again when it dies after it was ready.

    The guardian does nothing but wait, so that nothing can end it but a signal. While no server
    lives, the socket goes on listening, and clients wait in the kernel's queue. SIGTERM and SIGINT
    are passed on, and a second one ends the server at once. If the guardian is killed, the kernel
    kills the server, and with it the engine. Belongs to the main thread of a process that has
    neither other threads nor other children.
    """

    def __init__(self, listener: socket.socket, options: GuardOptions) -> None:
        self._listener = listener
        self._options = options
        self._watched = (*_WATCHED, signal.SIGHUP) if options.hang_up else _WATCHED
        self._pid: int | None = None
        self._stop: int | None = None  # the first signal to end
        self._again: int | None = None  # the second

    def run(self, serve: Callable[[Life], int]) -> int:
        """Start ``serve`` in a child process until it exits on purpose; returns the exit code.

        ``serve`` returns the exit code of its process and raises nothing. A start that fails is
        tried again only if an earlier one succeeded and this one reported no error of its own.
        Raises PenstockError if the server dies before it is ready, or too often.
        """
        adopt_orphans()
        deaths = restarts = 0
        with _blocked(self._watched) as mask:
            while True:
                death = self._live(serve, restarts, mask)
                if self._again is not None:
                    return 128 + self._again
                if self._stop is not None:
                    # The signal may come twice, from a process manager that tells everybody, and
                    # find a server that has drained and listens to signals no more.
                    drained = death.ready_at is not None and -death.code in _WATCHED
                    return 0 if drained else death.exit_code
                if death.over or (restarts == 0 and death.ready_at is None and death.code >= 0):
                    return death.exit_code
                if restarts == 0 and death.ready_at is None:
                    raise PenstockError(f"{death} before it was ready")
                now = time.monotonic()
                stable = self._options.stable_s
                if death.ready_at is not None and now - death.ready_at >= stable:
                    deaths = 0
                deaths += 1
                wait = self._options.pause(deaths)
                if wait is None:
                    raise PenstockError(
                        f"the server died {deaths} times in a row, and is not started again; the "
                        f"last time: {death}"
                    )
                self._log(f"{death}; it is started again in {wait:g} s ({deaths} in a row)")
                if not self._pause(wait):
                    return 0
                restarts += 1

    def _live(
        self, serve: Callable[[Life], int], restarts: int, mask: set[signal.Signals]
    ) -> _Death:
        """Run the server once, from its start to its end."""
        guardian = os.getpid()
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _be_server(lambda: serve(Life(restarts, writing)), guardian, mask)
        os.close(writing)
        self._pid = pid
        with open(reading, "rb") as pipe:
            code = self._wait(pid)
            os.set_blocking(reading, False)  # a grandchild may hold the other end
            marks = (pipe.read() or b"").split()
        self._pid = None
        ready = marks[marks.index(b"ready") + 1] if b"ready" in marks else None
        return _Death(pid, code, None if ready is None else float(ready), b"over" in marks)

    def _wait(self, pid: int) -> int:
        while True:
            found, status = os.waitpid(-1, os.WNOHANG)
            if found == pid:
                return os.waitstatus_to_exitcode(status)
            if found == 0:
                # Unlike sigwait, it lets Python's handlers of other signals run.
                self._heed(signal.sigwaitinfo(self._watched).si_signo)

    def _heed(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGHUP:
            if self._pid is not None:
                os.kill(self._pid, number)
            return
        if self._stop is None:
            self._stop = number
            self._listener.close()  # from now on it listens as long as the server wants
            if self._pid is not None:
                os.kill(self._pid, number)
        else:
            self._again = number
            if self._pid is not None:
                os.kill(self._pid, signal.SIGKILL)

    def _pause(self, seconds: float) -> bool:
        """Wait for some seconds, and for the dead server's own children; False if asked to stop."""
        began = time.monotonic()
        while self._stop is None:
            alone = _reap()
            left = seconds if alone else max(seconds, ORPHANS_S)
            left -= time.monotonic() - began
            if left <= 0:
                return True
            info = signal.sigtimedwait(self._watched, left)
            if info is not None:
                self._heed(info.si_signo)
        return False

    def _log(self, text: str) -> None:
        """Write one line in the format of the server's log."""
        import logging  # not before it is needed: the guardian's start delays the server's

        from penstock.server.logs import JsonFormatter, TextFormatter

        formatter = JsonFormatter() if self._options.log_format == "json" else TextFormatter()
        record = logging.LogRecord(
            "penstock.guardian", logging.ERROR, __file__, 0, text, None, None
        )
        line = formatter.format(record).encode() + b"\n"
        with contextlib.suppress(OSError):
            # A pipe that can be written to takes a line of this length whole.
            if select.select([], [_STDERR], [], LOG_WAIT_S)[1]:
                os.write(_STDERR, line)


def _be_server(serve: Callable[[], int], guardian: int, mask: set[signal.Signals]) -> None:
    """Run the server in the child; never returns, so that no caller's code runs twice."""
    code = 1
    try:
        # Until the server listens to them, a signal ends it without a word.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if end_with_parent(guardian):
            code = serve()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _reap() -> bool:
    """Reap ended children; True if no others remain."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


@contextlib.contextmanager
def _blocked(
    watched: Collection[signal.Signals],
) -> Generator[set[signal.Signals], None, None]:
    """Block the signals that the guardian waits for; yields the previous mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    mask = {signal.Signals(number) for number in before}
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
