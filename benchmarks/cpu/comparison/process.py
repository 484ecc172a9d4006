"""A worker process of one engine: started, asked, stopped while others run, ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from comparison.protocol import Failed, Message, ProtocolError, Quit, decode, encode

ROOT = Path(__file__).resolve().parents[1]
"""The folder whose packages workers import."""
QUIT_SECONDS = 20.0


class WorkerError(Exception):
    """The engine failed, or did not answer in time. The message says how."""


class Worker:
    """``command`` runs in a session of its own, so that whatever it starts stops and ends with it.

    ``log`` receives what the engine prints. Raises WorkerError where the command does not start.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        path = os.pathsep.join(
            [str(ROOT), *filter(None, [(environment or {}).get("PYTHONPATH", "")])]
        )
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("ab") as errors:
            self._log_start = errors.tell()  # logs of earlier workers lie before
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, **(environment or {}), "PYTHONPATH": path},
                    start_new_session=True,
                )
            except OSError as error:
                raise WorkerError(f"its worker does not start: {error.strerror}") from None
        self._paused = False
        self._rest = b""

    def ask(self, message: Message, timeout_s: float) -> Message:
        """Send and wait. Raises WorkerError if it fails, dies, or takes longer."""
        self.resume()
        stdin = _pipe(self._process.stdin)
        try:
            stdin.write(encode(message).encode())
            stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._epitaph()) from None
        try:
            answer = decode(self._line(timeout_s))
        except ProtocolError as error:
            raise WorkerError(str(error)) from None
        if isinstance(answer, Failed):
            raise WorkerError(answer.error)
        return answer

    def pause(self) -> None:
        """Stop all its processes where they are: threads that spin or poll cost the others."""
        if not self._paused:
            self._signal(signal.SIGSTOP)
            self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def close(self) -> None:
        """Ask it to quit, and end what is left of it."""
        self.resume()
        try:
            stdin = _pipe(self._process.stdin)
            stdin.write(encode(Quit()).encode())
            stdin.close()
            self._process.wait(QUIT_SECONDS)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            pass
        self._signal(signal.SIGKILL)
        self._process.wait()
        _pipe(self._process.stdout).close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _line(self, timeout_s: float) -> str:
        stdout = _pipe(self._process.stdout)
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise WorkerError(f"no answer in {timeout_s:.0f} s; its output is in {self._log}")
            data = os.read(stdout.fileno(), 1 << 20)
            if not data:
                raise WorkerError(self._epitaph())
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def _epitaph(self) -> str:
        code = self._process.wait()
        printed = self._log.read_bytes()[self._log_start :].decode(errors="replace")
        lines = printed.strip().splitlines()
        last = lines[-1][:300] if lines else "it printed nothing"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return f"the worker ended {how} ({last}); its output is in {self._log}"

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("the worker has no pipe")
    return stream
