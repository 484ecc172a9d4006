"""``penstock serve`` in a process of its own, for as long as it is measured."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.engine.ipc.spawn import CORE_VARIABLE
from penstock.errors import PenstockError
from penstock.simulate.recorded_core import CORE, LOG_VARIABLE

_OF_USERS: Final = ("PENSTOCK_API_KEY", "PENSTOCK_ADMIN_KEY", "OTEL_")
"""How the names of variables begin that are for a server which users ask."""


def neutral(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server that is measured: it asks for no keys and sends no traces."""
    return {name: value for name, value in environment.items() if not name.startswith(_OF_USERS)}


@contextmanager
def serving(words: Sequence[str], log: Path | None = None) -> Iterator[str]:
    """The URL of a server that is ready, started with ``words`` after ``penstock serve``.

    Its engine notes its steps and requests in ``log``, which it writes when the server ends. Raises
    PenstockError if it does not start.
    """
    command = [sys.executable, "-m", "penstock", "serve", *words, "--port", "0", "--no-access-log"]
    environment = neutral(os.environ)
    if log is not None:
        environment |= {CORE_VARIABLE: CORE, LOG_VARIABLE: str(log)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
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
