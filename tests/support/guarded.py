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
from penstock.server.guardian import Guardian, GuardOptions, Life


def serves(life: Life) -> int:
    """Answers each connection with the number of restarts, until SIGTERM; then exits with 7."""
    ended = False

    def end(number: int, frame: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    listener = LISTENER
    listener.listen()
    listener.settimeout(0.05)
    _ready(life)
    while not ended:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            connection.sendall(b"%d" % life.restarts)
    life.over()
    return 7


def deaf(life: Life) -> int:
    """Does not end by SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _ready(life)
    time.sleep(600)
    return 0


def refuses(life: Life) -> int:
    """An error of its own before it is ready."""
    life.over()
    return 2


def starts_badly(life: Life) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def loads(life: Life) -> int:
    """Is not ready for long."""
    _report()
    time.sleep(600)
    return 0


def crashes(life: Life) -> int:
    """Aborts each time once it is ready."""
    _ready(life)
    os.abort()


def exits(life: Life) -> int:
    """Leaves without a word the first time, refuses the second."""
    if life.restarts:
        return refuses(life)
    _ready(life)
    os._exit(0)


def stumbles(life: Life) -> int:
    """Crashes once it is ready, then while it starts, then serves."""
    if life.restarts == 1:
        os.abort()
    if life.restarts == 0:
        return crashes(life)
    return serves(life)


def _report() -> None:
    with open(os.environ["GUARDED_LOG"], "a", encoding="ascii") as log:
        log.write(f"{os.getpid()}\n")


def _ready(life: Life) -> None:
    life.ready()
    _report()


LISTENER = socket.socket()

if __name__ == "__main__":
    name, restarts = sys.argv[1], int(sys.argv[2])
    LISTENER.bind(("127.0.0.1", 0))
    print(LISTENER.getsockname()[1], flush=True)
    serve: Callable[[Life], int] = globals()[name]
    try:
        options = GuardOptions(max_restarts=restarts, backoff_s=0.01, log_format="json")
        sys.exit(Guardian(LISTENER, options).run(serve))
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
