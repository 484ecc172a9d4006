"""Workers that take turns: one process each, all idle but the one that is asked.

What else the machine does then falls on all alike. A worker is this program again, with
``--worker NAME``; it answers every line on its input with one line.
"""

from __future__ import annotations

import subprocess
import sys


def spawn(worker: str) -> subprocess.Popen[str]:
    """Start the worker of that name, with this program's other arguments."""
    command = [sys.executable, *sys.argv, "--worker", worker]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(worker: subprocess.Popen[str]) -> str:
    """Let the worker take one turn; returns its line. Raises SystemExit if it died."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    answer = worker.stdout.readline()
    if not answer:
        raise SystemExit(f"a worker died with exit code {worker.wait()}")
    return answer
