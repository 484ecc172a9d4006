"""``penstock deploy`` with Ray of its own, of which nothing is left in the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from support.killed_streams import asked_by, parts, streamed
from support.waiting import PATIENCE_S, runs, until

PATIENT_S = 240.0
"""Ray alone starts five processes, each of which imports for seconds on a machine with two busy
cores."""
_REST_S = 0.3
"""Seconds between two streams of one asker: others need the cores, too."""
TEMPLATE = (
    "{% for tool in tools or [] %}# {{ tool.function.name }}\n{% endfor %}"
    "{% for message in messages %}{{ message.content }}\n{% endfor %}"
)


class RayFleet:
    """A folder for Ray's files and a configuration, a port, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._state = f"XDG_STATE_HOME={folder}/state"
        (folder / "chat.jinja").write_text(TEMPLATE)

    def file(self, text: str = "", *, name: str = "fleet", **tables: str) -> Path:
        """A configuration: ``text``, then tables of the lines that are given, and what all have:
        small servers of the demo model, and the port."""
        usual = {
            "serve": f"kv-cache-bytes = '32MiB'\nchat-template = '{self.folder}/chat.jinja'\n"
            "tool-call-parser = 'hermes'",
            "replicas": "cpus = 1",
            "routing": f"port = {self.port}",
        }
        lines = [f"name = '{name}'", text]
        for table in usual.keys() | tables.keys():
            lines += [f"[{table}]", usual.get(table, ""), tables.get(table, "")]
        path = self.folder / "fleet.toml"
        path.write_text("\n".join(lines))
        return path

    def deploy(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return subprocess.run(
            self.command(*words),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENT_S,
        )

    def up(self, path: Path) -> str:
        """Deploy; returns what the command printed."""
        ran = self.deploy(path)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    @staticmethod
    def command(*words: str | Path) -> list[str]:
        return [sys.executable, "-m", "penstock", "deploy", *map(str, words)]

    @property
    def environment(self) -> dict[str, str]:
        name, _, value = self._state.partition("=")
        return {
            **os.environ,
            name: value,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "RAY_TMPDIR": str(self.folder),
        }

    @property
    def status(self) -> dict[str, Any]:
        ran = self.deploy("--status", "--json")
        assert ran.returncode == 0, ran.stderr
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    def servers(self) -> list[dict[str, Any]]:
        """What the router's page says of each server that is ready."""
        told = httpx.get(f"{self.url}/fleet/status", timeout=PATIENCE_S, trust_env=False).json()
        return [each for each in told["replicas"] if each["state"] == "ready"]

    def processes(self) -> list[int]:
        """All that was started here and runs: Ray's, and servers."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it has ended
                if self._state.encode() in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return [pid for pid in found if runs(pid)]

    def end(self) -> None:
        """Take down what runs, and end what is left."""
        if self.processes():
            self.deploy("--down")
        self.kill()

    def kill(self) -> None:
        """End whatever runs, at once."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def ray_fleet() -> Iterator[RayFleet]:
    # Sockets lie in it, whose paths may not be long.
    with tempfile.TemporaryDirectory(prefix="pray-") as folder:
        fleet = RayFleet(Path(folder))
        # Ends Ray where this process is ended itself, and nothing else is done any more.
        command = [sys.executable, __file__, folder]
        variables = {**os.environ, "PYTHONPATH": fleet.environment["PYTHONPATH"]}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, env=variables, start_new_session=True
        ):
            try:
                yield fleet
            finally:
                fleet.end()
                until(lambda: not fleet.processes(), PATIENCE_S, "the end of Ray's processes")


class Askers:
    """Threads that ask for streams again and again, and compare what is answered."""

    def __init__(self, url: str, kinds: Sequence[str], expected: dict[str, Any]) -> None:
        self._url = url
        self._expected = expected
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(kind,)) for kind in kinds]
        self.equal = 0
        self.troubles: list[str] = []

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Meanwhile they ask; afterwards, what is open has ended."""
        for thread in self._threads:
            thread.start()
        try:
            until(lambda: self.equal or self.troubles, PATIENCE_S, "the first answer")
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def _run(self, kind: str) -> None:
        with httpx.Client(base_url=self._url, timeout=PATIENCE_S, trust_env=False) as client:
            while not self._stop.is_set():
                try:
                    found = answer(client, kind)
                except (httpx.HTTPError, AssertionError) as error:
                    self.troubles.append(f"{kind}: {error!r}")
                    return
                if found != self._expected[kind]:
                    self.troubles.append(f"{kind}: other bits")
                    return
                self.equal += 1
                self._stop.wait(_REST_S)


def answer(client: httpx.Client, kind: str) -> dict[Any, Any]:
    """What a stream of this kind says. Raises AssertionError where it does not end well."""
    path, body = asked_by(kind)
    lines = streamed(client, path, body)
    ends = ('{"type":"response.completed"', '{"type":"response.incomplete"', "[DONE]")
    assert lines, "nothing was answered"
    assert lines[-1].startswith(ends), lines[-1]
    return parts(path, lines)


if __name__ == "__main__":
    sys.stdin.read()
    RayFleet(Path(sys.argv[1])).kill()
    shutil.rmtree(sys.argv[1], ignore_errors=True)
