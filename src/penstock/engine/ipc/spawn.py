"""Starting the engine's process. Imports little, so that a command can do it before all else."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time

from penstock.config import EngineConfig
from penstock.engine.ipc.wire import Start, encode_frame
from penstock.errors import EngineDeadError

DEFAULT_CORE = "penstock.engine.ipc.child:load_core"


class EngineChild:
    """A started engine process and our end of its socket."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
        self.socket = sock

    @classmethod
    def spawn(cls, config: EngineConfig, core: str = DEFAULT_CORE) -> EngineChild:
        """Start ``python -m penstock.engine.ipc.child`` with one end of a socket pair.

        A socket pair has no name, so there is nothing that another user could connect to and
        nothing to remove afterwards. The kernel kills the child when the calling thread ends, so
        call this from one that lives as long as the engine.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # -P keeps the current folder out of sys.path; ours is passed instead, so that the child
        # imports the same penstock (and core) as we did.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        command = [sys.executable, "-P", "-m", "penstock.engine.ipc.child"]
        command += ["--fd", str(theirs.fileno()), "--core", core]
        with theirs:
            spawned_at = time.monotonic()
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what an engine prints must not mix with a command's output
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # out of reach of the terminal's Ctrl-C from the start
                    env={**os.environ, "PYTHONPATH": path},
                )
            except OSError as error:
                ours.close()
                raise EngineDeadError(f"the engine process cannot be started: {error}") from error
        # An engine that dies at once is noticed by whoever reads the socket, with its exit code.
        with contextlib.suppress(BrokenPipeError):
            ours.sendall(encode_frame(Start(config, spawned_at)))
        return cls(process, ours)

    def kill(self) -> None:
        """End the process now, for a start that is given up."""
        self.socket.close()
        self.process.kill()
        self.process.wait()
