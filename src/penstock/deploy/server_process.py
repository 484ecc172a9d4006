"""``penstock serve`` in a process that ends with this one."""

from __future__ import annotations

import asyncio
import collections
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.errors import PenstockError
from penstock.processes.family import describe_exit

_LAST_LINES: Final = 40
_AFTER_GRACE_S: Final = 15.0
"""Seconds beyond its grace after which a server that does not end is killed."""
_ERROR: Final = re.compile(r"^penstock: error: (.*)$")


class StartError(PenstockError):
    """The server did not start; the message is its own."""


class ServerProcess:
    """One server and the lines that it writes, which pass on to this process's own output.

    The kernel ends it when the thread that made this object ends; that must be one that lasts.
    """

    def __init__(
        self, words: Sequence[str], host: str, grace_s: int, environment: Mapping[str, str]
    ) -> None:
        """Start it with ``words`` behind ``penstock serve``. Raises OSError."""
        self.admin_key = secrets.token_hex(16)
        self._grace_s = grace_s
        command = [sys.executable, "-P", "-m", "penstock.deploy.with_parent", str(os.getpid())]
        command += ["serve", *words, f"--host={host}", "--port=0", f"--grace={grace_s}"]
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [*command, "--no-page", "--no-access-log"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
            env={**environment, "PYTHONPATH": path, "PENSTOCK_ADMIN_KEY": self.admin_key},
        )
        self._url: str | None = None
        self._settled = threading.Event()
        self._last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """The process of its guardian."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    async def ready(self) -> str:
        """Its URL, once it serves. Raises StartError with its own message if it ends before."""
        await asyncio.to_thread(self._settled.wait)
        if self._url is None:
            code = await asyncio.to_thread(self._process.wait)
            for reader in self._readers:
                await asyncio.to_thread(reader.join)
            errors = [found[1] for line in self._last if (found := _ERROR.match(line))]
            last = errors[-1:] or list(self._last)[-1:] or [f"the server {describe_exit(code)}"]
            raise StartError(last[0])
        return self._url

    async def stop(self) -> None:
        """Let what is open end, for as long as it may, and wait for the end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, self._grace_s + _AFTER_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        url: str | None = None
        for line in self._process.stdout:
            found = re.search(r"at (http://\S+)/v1$", line.strip())
            url = url or (found[1] if found else None)
            if line.startswith("ready in "):
                self._url = url
                self._settled.set()
            print(line, end="", flush=True)
        self._settled.set()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last.append(line.rstrip("\n"))
            print(line, end="", file=sys.stderr, flush=True)
