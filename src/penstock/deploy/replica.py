"""One replica: an actor of Ray Serve's that holds a server."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Final

import msgspec
import ray

from penstock.deploy.config import DeployConfig
from penstock.deploy.directory import Noted
from penstock.deploy.figures import FigureReader
from penstock.deploy.server_process import ServerProcess
from penstock.errors import PenstockError
from penstock.processes.family import describe_exit
from penstock.router.exchange import Timeouts, UpstreamError
from penstock.router.target import Target
from penstock.router.upstream import Pool
from penstock.version import __version__

_PATIENCE: Final = Timeouts(connect=5.0, head=5.0, idle=5.0)
_MOST_METRICS: Final = 4 << 20


class ReplicaActor:
    """What Ray calls of a replica. Its server is ready once it has been made."""

    async def __init__(self, tables: dict[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        """``tables``: those of the configuration. Raises StartError with the server's own message
        where it does not start."""
        config = DeployConfig.of(tables)
        self._reader = FigureReader(config.autoscaling.window)
        self._build = build_of(config)
        self._host = ray.util.get_node_ip_address()
        self._server = ServerProcess(config.words, self._host, config.replicas.grace, os.environ)
        try:
            self._url = await self._server.ready()
        except BaseException:
            self._server.kill()
            raise
        self._pool = Pool(Target.of(self._url))

    def record_replica_metadata(self) -> dict[str, Any]:
        """What routers are told of it, once."""
        noted = Noted(self._url, self._server.admin_key, self._build, self._server.pid, self._host)
        found: dict[str, Any] = msgspec.to_builtins(noted)
        return found

    def check_health(self) -> None:
        """Raises PenstockError where the server has ended: it restarts its engine, and its guardian
        the server, so what is left is for Ray."""
        code = self._server.exit_code
        if code is not None:
            raise PenstockError(f"the server {describe_exit(code)}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Its figures, of which Ray takes the mean over a while. Raises UpstreamError where the
        server tells none."""
        key = f"Bearer {self._server.admin_key}".encode()
        status, text = await self._pool.fetch(
            "GET", "/metrics", ((b"authorization", key),), b"", _PATIENCE, _MOST_METRICS
        )
        if status != 200:  # it would look as if the server had nothing to do
            raise UpstreamError("head", f"status {status}")
        now = time.monotonic()
        found: dict[str, float] = vars(self._reader.read(text.decode(errors="replace"), now))
        return found

    async def wake(self) -> None:
        """Do nothing. Ray starts a replica for whoever calls this where there is none."""

    async def __del__(self) -> None:
        """Let what is open end."""
        await self._server.stop()


def build_of(config: DeployConfig) -> str:
    """The name of what servers of this configuration answer. Options that only change how fast
    they are give another name, too: which options do is for the engine to know."""
    return digest(__version__, config.words, config.revision)


def digest(*said: Any) -> str:
    """The same text for the same values, which JSON has."""
    return hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()[:16]
