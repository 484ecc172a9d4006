"""Servers behind one address, and which of their processes may be killed."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Protocol

from service.process import ADMIN_KEY, HOST, STOP_S, Served, environment, until

VICTIMS = ("guardian", "server", "engine")


class Fleet(Protocol):
    url: str

    def victims(self) -> list[tuple[str, int]]:
        """What may be killed now: what it is, and its process id."""

    def restore(self, killed: int) -> None:
        """Start again the process that was killed, if it does not come back by itself."""


class GivenFleet:
    """A fleet that somebody else runs."""

    def __init__(self, url: str, command: str) -> None:
        """``command`` prints what may be killed: a process id a line, or an object of JSON in
        which each of ``replicas`` has a ``pid``."""
        self.url = url
        self._command = command

    def victims(self) -> list[tuple[str, int]]:
        """Raises RuntimeError where the command fails."""
        ran = subprocess.run(
            self._command, shell=True, capture_output=True, text=True, env=environment()
        )
        if ran.returncode:
            raise RuntimeError(f"{self._command}: {ran.stderr.strip()}")
        text = ran.stdout.strip()
        if text.startswith("{"):
            found = [each.get("pid") for each in json.loads(text)["replicas"]]
            return [("replica", pid) for pid in found if pid]
        return [("replica", int(line)) for line in text.splitlines()]

    def restore(self, killed: int) -> None:
        pass


class OwnFleet:
    """``penstock route`` before several ``penstock serve``."""

    def __init__(self, count: int, words: Sequence[str], kinds: Sequence[str]) -> None:
        self._words = words
        self._kinds = kinds
        self.servers = [self._start(0) for _ in range(count)]
        urls = [f"http://{HOST}:{each.port}" for each in self.servers]
        self._router, self.url = _router(urls, ["--wait", "60"])

    def victims(self) -> list[tuple[str, int]]:
        found = []
        for each in self.servers:
            with suppress(OSError, KeyError):
                status = each.status()
                pids = {"guardian": each.process.pid}
                pids |= {name: status[name]["pid"] for name in ("server", "engine")}
                found += [(kind, pids[kind]) for kind in self._kinds]
        return found

    def restore(self, killed: int) -> None:
        for number, each in enumerate(self.servers):
            if each.process.pid == killed:
                _closed(each.process)
                self.servers[number] = self._start(each.port)

    def close(self) -> None:
        processes = [self._router, *(each.process for each in self.servers)]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            _ended(process)

    def _start(self, port: int) -> Served:
        if port:
            until(lambda: _is_free(port), STOP_S, f"port {port} is free")
        process = _penstock(["serve", "--port", str(port), *self._words])
        found = _said(process, r"at http://\S+:(\d+)/v1")
        return Served(process, int(found))


@contextmanager
def own_fleet(count: int, words: Sequence[str], kinds: Sequence[str]) -> Iterator[OwnFleet]:
    fleet = OwnFleet(count, words, kinds)
    try:
        yield fleet
    finally:
        fleet.close()


@contextmanager
def routing(urls: Sequence[str], words: Sequence[str] = ()) -> Iterator[str]:
    """``penstock route`` before servers, with these options; its URL."""
    process, url = _router(urls, words)
    try:
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        _ended(process)


def _router(urls: Sequence[str], words: Sequence[str]) -> tuple[subprocess.Popen[str], str]:
    process = _penstock(["route", *urls, "--port", "0", "--no-access-log", *words])
    return process, _said(process, r"routes at (http://\S+)/v1")


def _is_free(port: int) -> bool:
    """Whether nobody listens there any more: what a guardian has started ends just after it."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0


def _penstock(words: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", *words]
    variables = {**environment(), "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)


def _said(process: subprocess.Popen[str], pattern: str) -> str:
    """What the first line of its output says. Raises RuntimeError if it says something else."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(pattern, line)
    if found is None:
        process.kill()
        raise RuntimeError(f"{process.args!r} did not start: {line!r}")
    return found[1]


def _ended(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a process that was told to end."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    process.kill()
    _closed(process)


def _closed(process: subprocess.Popen[str]) -> None:
    process.wait()
    out: IO[str] | None = process.stdout
    if out is not None:
        out.close()
