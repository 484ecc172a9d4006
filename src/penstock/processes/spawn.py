"""Starting a module of ours in a process of its own, with one end of a socket pair."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence


def spawn(
    module: str,
    arguments: Sequence[str] = (),
    *,
    kind: socket.SocketKind = socket.SOCK_STREAM,
    stdout: int,
    stderr: int | None = None,
    environment: Mapping[str, str],
    pass_fds: Sequence[int] = (),
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start ``python -m module --fd N ARGUMENTS`` and return the process and our end of the pair.

    A socket pair has no name, so there is nothing that another user could connect to and nothing
    to remove afterwards. The child imports the same penstock as we did, whatever its environment
    says, and is out of reach of the terminal's Ctrl-C from the start. ``stdout`` and ``stderr`` are
    file descriptors or constants of subprocess; None is ours. ``pass_fds`` are open in the child
    under the same numbers. Raises OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    # -P keeps the current folder out of sys.path; ours is passed instead.
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    command = [sys.executable, "-P", "-m", module, "--fd", str(theirs.fileno()), *arguments]
    with theirs:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[theirs.fileno(), *pass_fds],
                process_group=0,
                env={**environment, "PYTHONPATH": path},
            )
        except BaseException:
            ours.close()
            raise
    return process, ours
