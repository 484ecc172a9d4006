"""Ray of our own on this machine: its files, its start and its end. Imports nothing of Ray's."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from penstock.errors import PenstockError

_START_S: Final = 180.0
_STOP_S: Final = 60.0
_CPUS: Final = 1000
"""What Ray thinks that there are. On one machine there is nothing to place: replicas share it."""


@dataclass(frozen=True)
class OwnRay:
    """The Ray of one user on this machine, whether it runs or not. Its processes listen on
    loopback, and take only those who know the token, which is in a file of this user's."""

    folder: Path

    @classmethod
    def of_user(cls, environment: Mapping[str, str]) -> Self:
        """That whose files are in ``$XDG_STATE_HOME/penstock/ray``."""
        state = environment.get("XDG_STATE_HOME", "")
        base = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
        return cls(base / "penstock" / "ray")

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def address(self) -> str | None:
        """Where it runs; None where it does not."""
        if self._pid() is None:
            return None
        try:
            return self._address.read_text() or None
        except FileNotFoundError:
            return None

    def prepare(self, environment: MutableMapping[str, str]) -> None:
        """Set the variables by which Ray's own code uses it; they hold for all that is started
        with them. To be called before Ray is imported."""
        environment.update(
            # Without clusters a machine is known by its loopback address, and listens on it alone.
            RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN_PATH=str(self.folder / "token"),
            RAY_USAGE_STATS_ENABLED="0",
            # Ray's processes give way to others by 15 otherwise, and servers with them.
            RAY_worker_niceness="0",
        )
        for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
            environment.pop(name, None)

    def start(self, environment: MutableMapping[str, str]) -> str:
        """Start it, if it does not run; returns its address. Raises PenstockError where it does not
        start, and OSError where its files cannot be written."""
        running = self.address
        if running is not None:
            return running
        self.stop()  # what began to start and is not yet there
        try:
            return self._begin(environment)
        except PenstockError:
            # Ray gives its processes half a minute to find each other, which may be too little on a
            # machine with much to do.
            return self._begin(environment)

    def _begin(self, environment: Mapping[str, str]) -> str:
        """Start it once; returns its address. Raises PenstockError and OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        token = self.folder / "token"
        if not token.exists():
            with open(token, "x", opener=_private) as file:
                file.write(secrets.token_hex(32))
        self._address.unlink(missing_ok=True)
        with open(self.log, "wb") as log:
            command = [sys.executable, "-P", "-m", "penstock.deploy.local", str(self._address)]
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            process = subprocess.Popen(
                [*command, str(_CPUS)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**environment, "PYTHONPATH": path},
            )
        try:
            (self.folder / "pid").write_text(f"{process.pid} {_born(process.pid)}")
            return self._started(process)
        except BaseException:  # a key was pressed, or it does not start
            process.kill()
            process.wait()
            raise

    def _started(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for the address. Raises PenstockError where it does not start."""
        until = time.monotonic() + _START_S
        while (address := self.address) is None:
            if process.poll() is not None or time.monotonic() > until:
                last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
                why = last[0] if last else "it says nothing"
                raise PenstockError(f"Ray did not start on this machine: {why}; see {self.log}")
            time.sleep(0.1)
        return address

    def stop(self) -> None:
        """End it, and all that runs in it."""
        pid = self._pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + _STOP_S
        while self._pid() is not None:
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)  # the kernel ends the rest with it
            time.sleep(0.1)
        self._address.unlink(missing_ok=True)

    @property
    def _address(self) -> Path:
        return self.folder / "address"

    def _pid(self) -> int | None:
        """The process that holds it, if that lives."""
        try:
            pid, born = (self.folder / "pid").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if born != "0" and _born(int(pid)) == born else None


def _born(pid: int) -> str:
    """When a process began, in the kernel's clock; "0" where there is none that runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "0"
    return "0" if fields[0] in "ZX" else fields[19]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)
