"""Where the stages of a pipeline are: in child processes, or at addresses of other hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Final

from penstock.engine.stages.channel import Channel
from penstock.engine.stages.handshake import as_engine
from penstock.engine.stages.sockets import connect
from penstock.engine.stages.wire import SILENCE_S, FromStage
from penstock.errors import EngineDeadError
from penstock.processes.family import describe_exit
from penstock.processes.frames import WireError
from penstock.processes.spawn import spawn

EXIT_GRACE_S: Final = 5.0
"""Seconds in which a process that is to end does."""

MODULE: Final = "penstock.engine.stages.child"


class NearStage:
    """A stage that is a child process of this one."""

    def __init__(self, module: str = MODULE) -> None:
        self._module = module
        self.process: subprocess.Popen[bytes] | None = None

    def __str__(self) -> str:
        return "" if self.process is None else f" (pid {self.process.pid})"

    def open(self) -> Channel[FromStage]:
        try:
            self.process, sock = spawn(self._module, stdout=2, environment=os.environ)
        except OSError as error:
            raise EngineDeadError(f"its process cannot be started: {error}") from error
        sock.settimeout(SILENCE_S)
        return Channel(sock, "engine", FromStage)

    def end(self) -> str:
        """Return why the stage has closed its end."""
        assert self.process is not None
        try:
            code = self.process.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            return "has closed its socket"
        hint = "; see its messages above" if code >= 0 else ""
        if code == -signal.SIGKILL:
            hint = "; if nobody killed it, memory ran out: lower kv_cache_bytes"
        return f"{describe_exit(code)}{hint}"

    def close(self, patience: float) -> None:
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
            return
        self.process.kill()
        self.process.wait()


class FarStage:
    """A stage that waits at an address, which some ``penstock stage`` listens on."""

    process: subprocess.Popen[bytes] | None = None

    def __init__(self, address: str, secret: bytes | None) -> None:
        self._address = address
        self._secret = secret

    def __str__(self) -> str:
        return f" ({self._address})"

    def open(self) -> Channel[FromStage]:
        sock = connect(self._address)
        try:
            channel = as_engine(sock, self._secret)
        except WireError as error:
            sock.close()
            raise EngineDeadError(f"{error}; is 'penstock stage' what listens there?") from error
        except TimeoutError as error:
            sock.close()
            raise EngineDeadError("it does not answer; see what listens there") from error
        except BaseException:
            sock.close()
            raise
        sock.settimeout(SILENCE_S)
        return channel

    def end(self) -> str:
        return "has ended the connection; see its messages on its host"

    def close(self, patience: float) -> None:
        """Its process goes on, and waits for the next engine."""
