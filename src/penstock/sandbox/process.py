"""A front end's hold on a worker's process: start it, slow it, end it, find out why it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from penstock.errors import PenstockError
from penstock.sandbox.jobs import Cause

WALL_S = 120.0
"""Of a job, however little processor time it got: its machine is that busy, or it does not work."""
_NICE = 10
_PAGE = os.sysconf("SC_PAGE_SIZE")


class WorkerDied(Exception):
    """The worker ended before it answered."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause: Cause = cause


class WorkerProcess:
    """A started worker and our end of its socket. The worker ends when that is closed."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process = process
        self.socket = sock
        self.lowered = False
        """Its priority was lowered, which cannot be undone."""
        self.late = False
        """It was killed since its job took too long."""

    @classmethod
    def spawn(cls) -> WorkerProcess:
        """The kernel kills the worker when the calling thread ends. Raises PenstockError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        command = [sys.executable, "-P", "-m", "penstock.sandbox.worker"]
        quiet = {"RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false"}
        with theirs:
            try:
                process = subprocess.Popen(
                    [*command, "--fd", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # panics print what a request holds
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # out of reach of the terminal's Ctrl-C from the start
                    env={**os.environ, **quiet, "PYTHONPATH": path},
                )
            except OSError as error:
                ours.close()
                raise PenstockError(f"a worker process cannot be started: {error}") from error
        return cls(process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def cpu_s(self) -> float:
        """Processor time that the process has taken."""
        with contextlib.suppress(OSError):
            return time.clock_gettime((~self.pid << 3) | 2)  # CPUCLOCK_SCHED of the process
        return 0.0

    @property
    def resident_bytes(self) -> int:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE
        return 0

    def lower(self) -> None:
        """Give way to other work from now on."""
        self.lowered = True
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.pid, _NICE)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self, late: bool = False) -> None:
        """End the process now; safe to repeat."""
        self.late = self.late or late
        self._process.kill()

    def wait(self) -> None:
        """Until the process has ended; it is to be killed, or its end of the socket closed."""
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def cause(self) -> Cause:
        """Why it ended, once it has."""
        if self.late:
            return "time"
        match -(self._process.returncode or 0):
            case signal.SIGPROF | signal.SIGXCPU:
                return "time"
            case signal.SIGKILL | signal.SIGABRT:  # the kernel, short of memory; Rust, likewise
                return "memory"
        return "crash"
