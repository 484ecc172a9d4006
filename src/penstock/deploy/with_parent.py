"""``python -m penstock.deploy.with_parent PID WORD ...``: the command line ``penstock WORD ...``,
which the kernel ends with the thread of process PID that has started this one."""

from __future__ import annotations

import os
import signal
import sys

from penstock.processes.family import end_with_parent


def main() -> None:
    parent, words = int(sys.argv[1]), sys.argv[2:]
    if not end_with_parent(parent):
        sys.exit(1)
    # Threads of Ray's block signals, and a process begins with what the thread that starts it has.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # What the kernel was told holds for what takes the place of this program, too.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "penstock", *words])


if __name__ == "__main__":
    main()
