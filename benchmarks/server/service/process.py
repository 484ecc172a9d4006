"""A ``penstock serve`` of its own, and what the kernel knows of its processes."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

HOST = "127.0.0.1"
ADMIN_KEY = "benchmark"
START_S, STOP_S, ANSWER_S = 120.0, 60.0, 120.0


class Served:
    """A running server: the process that speaks HTTP, and behind it the engine's."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port
        self.model: str = self.get("/v1/models")["data"][0]["id"]

    @property
    def pid(self) -> int:
        """Id of the process that serves HTTP, a child of the one that was started."""
        pid: int = self.status()["server"]["pid"]
        return pid

    @property
    def engine_pid(self) -> int:
        """Process id of the present engine; another after each restart."""
        pid: int = self.status()["engine"]["pid"]
        return pid

    def get(self, path: str) -> Any:
        return json.loads(self.text(path))

    def post(self, path: str, body: object) -> Any:
        return json.loads(self.text(path, json.dumps(body).encode()))

    def status(self) -> dict[str, Any]:
        """What ``/admin/status`` says."""
        answer: dict[str, Any] = self.get("/admin/status")
        return answer

    def text(self, path: str, body: bytes | None = None) -> bytes:
        """Raises urllib.error.HTTPError for a status that is an error."""
        request = urllib.request.Request(
            f"http://{HOST}:{self.port}{path}",
            body,
            {"authorization": f"Bearer {ADMIN_KEY}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            data: bytes = answer.read()
            return data

    def ready(self) -> bool:
        try:
            self.text("/ready")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def metric(self, name: str) -> float:
        """The value of the first sample of that name."""
        found = re.search(
            rf"^penstock:{name}\{{.*\}} (\S+)$", self.text("/metrics").decode(), re.MULTILINE
        )
        if found is None:
            raise KeyError(name)
        return float(found[1])


@contextmanager
def serving(
    options: Sequence[str], log: IO[bytes] | None = None, keys: Sequence[str] = ()
) -> Iterator[Served]:
    """``penstock serve`` with these options. ``log`` takes its standard error. With ``keys``, only
    those who have one may ask.

    Raises RuntimeError if it does not start, and if it does not end well when it is told to.
    """
    raise_file_limit()
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0", *options]
    access = {"PENSTOCK_API_KEYS": ",".join(keys)} if keys else {}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**environment(), **access, "PENSTOCK_ADMIN_KEY": ADMIN_KEY},
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        found = re.search(r"at http://\S+:(\d+)/v1", first)
        if found is None:
            raise RuntimeError(f"the server did not start: {first!r}")
        yield Served(process, int(found[1]))
        process.send_signal(signal.SIGTERM)
        if process.wait(STOP_S) != 0:
            raise RuntimeError(f"the server ended with code {process.returncode}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def environment() -> dict[str, str]:
    """Return environment variables for a process that imports what this one can."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path}


def raise_file_limit() -> None:
    """Let this process, and the ones it starts, have as many files open as they may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for ``condition``. Raises RuntimeError, naming ``what``, after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not after {seconds:g} s: {what}")
        time.sleep(0.05)
