"""``penstock serve`` in a process of its own, for as long as it is measured."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.errors import PenstockError


@contextmanager
def serving(words: Sequence[str]) -> Iterator[str]:
    """The URL of a server that is ready, started with ``words`` after ``penstock serve``.

    Raises PenstockError if it does not start.
    """
    command = [sys.executable, "-m", "penstock", "serve", *words, "--port", "0", "--no-access-log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = None
            for line in process.stdout:
                found = re.search(r"at (http://\S+)/v1$", line.strip())
                url = url or (found[1] if found else None)
                if line.startswith("ready in "):
                    break
            else:
                raise PenstockError(
                    "the server that was to be measured did not start; its messages are above "
                    f"({' '.join(command[1:])})"
                )
            assert url is not None, "a server that is ready has said where"
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
