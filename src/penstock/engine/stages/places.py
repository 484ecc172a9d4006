"""Where the stages of a pipeline are: in child processes, or at addresses of other hosts."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from typing import Final

from penstock.engine.exits import describe_compute_exit
from penstock.engine.stages.wire import FROM_STAGE, SILENCE_S, FromStage, engine_party
from penstock.errors import EngineDeadError
from penstock.peers.address import Address
from penstock.peers.channel import Channel, EndedError
from penstock.peers.sockets import connect
from penstock.processes.frames import WireError
from penstock.processes.spawn import spawn

EXIT_GRACE_S: Final = 5.0
"""Seconds in which a process that is to end does."""

CONNECT_S: Final = 30.0
"""Seconds in which a stage must be there: one that another engine has left takes a moment."""
_PAUSE_S: Final = 0.25

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
        channel: Channel[FromStage] = Channel(sock, FROM_STAGE)
        channel.set_timeout(SILENCE_S)
        return channel

    def end(self) -> str:
        """Return why the stage has closed its end."""
        assert self.process is not None
        try:
            code = self.process.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            return "has closed its socket"
        return describe_compute_exit(code)

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

    def __init__(self, address: Address, secret: bytes) -> None:
        self._address = address
        self._party = engine_party(secret)

    def __str__(self) -> str:
        return f" ({self._address})"

    def open(self) -> Channel[FromStage]:
        sock = self._connect()
        try:
            channel = self._party.greet(sock, FROM_STAGE, connected=True)
        except (EndedError, WireError) as error:
            raise EngineDeadError(f"{error}; is 'penstock stage' what listens there?") from error
        except TimeoutError as error:
            raise EngineDeadError("it does not answer; see what listens there") from error
        channel.set_timeout(SILENCE_S)
        return channel

    def _connect(self) -> socket.socket:
        until = time.monotonic() + CONNECT_S
        while True:
            try:
                return connect(self._address, CONNECT_S)
            except OSError as error:
                if time.monotonic() < until and not isinstance(error, socket.gaierror):
                    time.sleep(_PAUSE_S)
                    continue
                raise EngineDeadError(
                    f"it cannot be reached: {error}; start it there with 'penstock stage MODEL "
                    f"--host {self._address.host} --port {self._address.port}'"
                ) from error

    def end(self) -> str:
        return "has ended the connection; see its messages on its host"

    def close(self, patience: float) -> None:
        """Its process goes on, and waits for the next engine."""
