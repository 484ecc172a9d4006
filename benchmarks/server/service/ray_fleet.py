"""A fleet of ``penstock deploy``, with Ray of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.process import ANSWER_S, HOST, environment

_DEPLOY_S = 300.0


class RayFleet:
    """Servers that Ray places and starts again."""

    def __init__(self, folder: Path, tables: str, words: Sequence[str]) -> None:
        """``tables``: TOML; ``words``: options of the servers. Raises RuntimeError where it does
        not start."""
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = probe.getsockname()[1]
        self.url = f"http://{HOST}:{port}"
        # Sockets of Ray's lie in its folder, whose paths may not be long.
        self._variables = {
            **environment(),
            "XDG_STATE_HOME": str(folder / "state"),
            "RAY_TMPDIR": str(folder),
        }
        path = folder / "fleet.toml"
        lines = ["[serve]", *_as_toml(words), tables, f"[routing]\nport = {port}"]
        path.write_text("\n".join([*lines, "access-log = false\n"]))
        self.deploy(str(path))

    def deploy(self, *words: str) -> str:
        """What ``penstock deploy`` prints. Raises RuntimeError with its error."""
        command = [sys.executable, "-m", "penstock", "deploy", *words]
        ran = subprocess.run(
            command, env=self._variables, capture_output=True, text=True, timeout=_DEPLOY_S
        )
        if ran.returncode:
            raise RuntimeError(f"{' '.join(command)}: {ran.stderr.strip()}")
        return ran.stdout

    def servers(self) -> list[dict[str, Any]]:
        """What the router tells of each server that is ready."""
        text = urllib.request.urlopen(f"{self.url}/fleet/status", timeout=ANSWER_S).read()
        return [each for each in json.loads(text)["replicas"] if each["state"] == "ready"]

    def victims(self) -> list[tuple[str, int]]:
        """The actor's process of each replica, and the one that guards its server."""
        found = []
        for server in self.servers():
            guardian = int(server["pid"])
            found += [("guardian", guardian), ("actor", _parent(guardian))]
        return found

    def restore(self, killed: int) -> None:
        """Ray does."""


@contextmanager
def ray_fleet(tables: str, words: Sequence[str]) -> Iterator[RayFleet]:
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        fleet = RayFleet(Path(name), tables, words)
        try:
            yield fleet
        finally:
            fleet.deploy("--down")


def _as_toml(words: Sequence[str]) -> list[str]:
    """``--name value`` and ``--name`` as keys and values."""
    found: list[str] = []
    for word in words:
        if word.startswith("--"):
            found.append(f"{word[2:]} = true")
        else:
            found[-1] = found[-1].replace("= true", f"= {json.dumps(word)}")
    return found


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])
