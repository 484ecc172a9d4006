"""A program that a guardian runs, for tests: ``python -m guarded NAME [MAX_RESTARTS]``.

What its server does in life after life is told by ``NAME``; each life appends a line with its pid
to the file in ``GUARDED_LOG`` once it is ready.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.server.guardian import Guardian, GuardOptions, Turn


def serves(turn: Turn) -> int:
    """Answers each connection with the number of restarts, until SIGTERM; then exits with 7."""
    ended = False

    def end(number: int, frame: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    listener = LISTENER
    listener.listen()
    listener.settimeout(0.05)
    _ready(turn)
    while not ended:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            connection.sendall(b"%d" % turn.restarts)
    turn.over()
    return 7


def deaf(turn: Turn) -> int:
    """Does not end by SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _ready(turn)
    time.sleep(600)
    return 0


def refuses(turn: Turn) -> int:
    """An error of its own before it is ready."""
    turn.over()
    return 2


def starts_badly(turn: Turn) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def loads(turn: Turn) -> int:
    """Is not ready for long."""
    _tell()
    time.sleep(600)
    return 0


def crashes(turn: Turn) -> int:
    """Aborts each time once it is ready."""
    _ready(turn)
    os.abort()


def exits(turn: Turn) -> int:
    """Leaves without a word the first time, refuses the second."""
    if turn.restarts:
        return refuses(turn)
    _ready(turn)
    os._exit(0)


def stumbles(turn: Turn) -> int:
    """Crashes once it is ready, then while it starts, then serves."""
    if turn.restarts == 1:
        os.abort()
    if turn.restarts == 0:
        return crashes(turn)
    return serves(turn)


def _tell() -> None:
    with open(os.environ["GUARDED_LOG"], "a", encoding="ascii") as log:
        log.write(f"{os.getpid()}\n")


def _ready(turn: Turn) -> None:
    turn.ready()
    _tell()


LISTENER = socket.socket()

if __name__ == "__main__":
    name, restarts = sys.argv[1], int(sys.argv[2])
    LISTENER.bind(("127.0.0.1", 0))
    print(LISTENER.getsockname()[1], flush=True)
    serve: Callable[[Turn], int] = globals()[name]
    try:
        options = GuardOptions(max_restarts=restarts, backoff_s=0.01, log_format="json")
        sys.exit(Guardian(LISTENER, options).run(serve))
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
