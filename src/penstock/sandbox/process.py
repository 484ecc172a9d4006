"""Worker processes as a front end sees them: starting them, lowering their priority, ending
them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from penstock.errors import UnavailableError
from penstock.processes.spawn import spawn
from penstock.sandbox.jobs import End

WALL_S = 120.0
"""Wall-clock limit of a job in seconds, for overloaded machines and stuck workers."""
START_S = 60.0
"""Wall-clock limit of a worker's start in seconds, in which its fork server may load a
tokenizer."""
_NICE = 10
_PAGE = os.sysconf("SC_PAGE_SIZE")
_VARIABLES = {
    *("PATH", "HOME", "TMPDIR", "LANG", "LANGUAGE", "TZ"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "GLIBC_TUNABLES", "ASAN_OPTIONS", "LSAN_OPTIONS"),
    *("PENSTOCK_ISA", "PENSTOCK_DEBUG", "PENSTOCK_CACHE_DIR"),
}
_FAMILIES = ("LC_", "PYTHON", "MALLOC_")


class WorkerDied(Exception):
    """The worker ended before it answered."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end: End = end


class ForkServer:
    """The process that workers are forked from; started on first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the process was started and has ended."""
        return self._process is not None and self._process.poll() is not None

    def fork(self, tokenizer: str = "") -> socket.socket:
        """Fork a worker and return our end of its socket.

        The worker loads the tokenizer before it sends Started. Any thread may call this, one at a
        time. Never blocks. Raises UnavailableError.
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
        raise UnavailableError(
            "a worker process cannot be started: its fork server ends at once; send the request "
            "again later"
        )

    def close(self) -> None:
        """End the process and all its workers; safe to repeat."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _spawn(self) -> None:
        # What is forked must have one thread; and panics print what a request holds.
        alone = {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
        try:
            self._process, ours = spawn(
                "penstock.sandbox.worker",
                kind=socket.SOCK_SEQPACKET,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                environment={**_environment(), **alone, "RUST_BACKTRACE": "0"},
            )
        except OSError as error:
            raise UnavailableError(f"a worker process cannot be started: {error}") from error
        ours.setblocking(False)  # a server that takes no orders any more is replaced
        self._socket = ours


def _environment() -> dict[str, str]:
    """Return the environment variables that workers may see.

    The others may hold keys, and workers run code that others supply.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _VARIABLES or name.startswith(_FAMILIES)
    }


class WorkerProcess:
    """A worker that has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.lowered = False
        """Whether its priority was lowered, which cannot be undone."""
        self._handle: int | None = None
        with contextlib.suppress(OSError):  # it is gone already
            self._handle = os.pidfd_open(pid)
        self.first_bytes = self.resident_bytes
        """Resident memory before its first job, in bytes."""

    @property
    def cpu_s(self) -> float:
        """Processor time used by the process, in seconds."""
        with contextlib.suppress(OSError):
            return time.clock_gettime((~self.pid << 3) | 2)  # CPUCLOCK_SCHED of the process
        return 0.0

    @property
    def resident_bytes(self) -> int:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE
        return 0

    def lower(self) -> None:
        """Lower the priority of the process for good."""
        self.lowered = True
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.pid, _NICE)

    def kill(self) -> None:
        """End the process now; safe to repeat."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def release(self) -> None:
        """Release what refers to the process, which has ended."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
