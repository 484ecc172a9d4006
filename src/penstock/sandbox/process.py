"""A front end's hold on workers' processes: have them started, slow them, end them."""

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


class ForkServer:
    """The process that workers are forked from; started when the first is asked for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it was started and is there no more."""
        return self._process is not None and self._process.poll() is not None

    def fork(self, tokenizer: str = "") -> socket.socket:
        """Our end of a new worker's socket; it has loaded that tokenizer when it says Started.

        The kernel ends all workers when the thread ends that called this first. Raises
        PenstockError.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            for _ in range(2):  # a server that was killed is found out by sending
                if self._socket is None:
                    self._spawn()
                assert self._socket is not None
                try:
                    order = b"+" + tokenizer.encode()
                    socket.send_fds(self._socket, [order], [theirs.fileno()])
                    return ours
                except OSError:
                    self.close()
        ours.close()
        raise PenstockError("a worker process cannot be started: its fork server ends at once")

    def close(self) -> None:
        """End it, and with it all workers; safe to repeat."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        command = [sys.executable, "-P", "-m", "penstock.sandbox.worker"]
        # What is forked must have one thread; and panics print what a request holds.
        alone = {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*command, "--fd", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # out of reach of the terminal's Ctrl-C from the start
                    env={**os.environ, **alone, "RUST_BACKTRACE": "0", "PYTHONPATH": path},
                )
            except OSError as error:
                ours.close()
                raise PenstockError(f"a worker process cannot be started: {error}") from error
        self._socket = ours


class WorkerProcess:
    """A worker that has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.lowered = False
        """Its priority was lowered, which cannot be undone."""
        self._handle: int | None = None
        with contextlib.suppress(OSError):  # it is gone already
            self._handle = os.pidfd_open(pid)
        self.first_bytes = self.resident_bytes
        """Its memory before its first job."""

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
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process now; safe to repeat."""
        self._signal(signal.SIGKILL)

    def release(self) -> None:
        """Forget the process, which has ended."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _signal(self, number: int) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._handle, number)
