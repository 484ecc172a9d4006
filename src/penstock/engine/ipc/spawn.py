"""Starts the engine's process. Imports little, so that a command can do it before all else."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time

from penstock.config import EngineConfig
from penstock.engine.ipc.wire import Start, encode_frame
from penstock.errors import ConfigError, EngineDeadError
from penstock.handover_config import Role
from penstock.processes.spawn import spawn

DEFAULT_CORE = "penstock.engine.ipc.core_loader:load_core"
CORE_VARIABLE = "PENSTOCK_ENGINE_CORE"
"""The environment variable that names another loader for the engine of a server."""


class EngineChild:
    """A started engine process and our end of its socket."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
        self.socket = sock

    @classmethod
    def spawn(
        cls, config: EngineConfig, core: str = DEFAULT_CORE, role: Role | None = None
    ) -> EngineChild:
        """Start ``python -m penstock.engine.ipc.child`` and send it what to load.

        The kernel kills the child when the calling thread ends, so call this from one that lives as
        long as the engine. ``core`` is as in penstock.engine.ipc.core_loader. With a ``role``,
        prompts are computed apart. Raises EngineDeadError, and ConfigError for options that no
        message can hold.
        """
        spawned_at = time.monotonic()
        frame = _start(config, spawned_at, role)
        try:
            process, sock = spawn(
                "penstock.engine.ipc.child",
                ["--core", core],
                stdout=2,  # what an engine prints must not mix with a command's output
                environment=os.environ,
            )
        except OSError as error:
            raise EngineDeadError(f"the engine process cannot be started: {error}") from error
        # The reader of the socket notices an engine that dies at once, with its exit code.
        with contextlib.suppress(BrokenPipeError):
            sock.sendall(frame)
        return cls(process, sock)

    def kill(self) -> None:
        """End the process now, for a start that is given up."""
        self.socket.close()
        self.process.kill()
        self.process.wait()


def _start(config: EngineConfig, spawned_at: float, role: Role | None) -> bytes:
    """The first message. Raises ConfigError where a number has more than 64 bits."""
    try:
        return encode_frame(Start(config, spawned_at, role))
    except OverflowError:
        large = (
            name
            for name in config.__struct_fields__
            if isinstance(value := getattr(config, name), int) and value.bit_length() > 63
        )
        names = ", ".join(large) or "an option"
        raise ConfigError(f"{names}: more than 64 bits; give a smaller number") from None
