"""Ray Serve: connecting, applying a configuration, looking at what is deployed, taking it down.

Imports Ray. :meth:`OwnRay.prepare` has to be called before, where Ray is to be our own.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import ray
from ray import serve
from ray.serve.context import _get_global_client

from penstock.deploy.app import INGRESS, REPLICAS, application
from penstock.deploy.config import DeployConfig
from penstock.deploy.status import DeploymentStatus, deployment_status
from penstock.deploy.tables import Routing
from penstock.errors import ConfigError, PenstockError, first_line

_LOOK_S: Final = 0.5
_CONNECT_S: Final = 5.0
_PREFIX: Final = "/"
Told = Callable[[DeploymentStatus], None]


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to Ray at HOST:PORT. Raises PenstockError naming why there is none."""
    _reached(address)
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _nowhere(address, first_line(error)) from None
    try:
        yield
    finally:
        ray.shutdown()


def _reached(address: str) -> None:
    """Raise PenstockError where nobody listens: Ray itself would try for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise _nowhere(address, error.strerror or str(error)) from None


def _nowhere(address: str, why: str) -> PenstockError:
    return PenstockError(
        f"there is no Ray cluster at {address}: {why}; name the address of its head, HOST:PORT, or "
        "leave --address out to run on this machine alone"
    )


def apply(config: DeployConfig, told: Told) -> DeploymentStatus:
    """Deploy, or change what is deployed under this name; returns what it is once it runs.

    ``told`` is called whenever something has changed before. Raises ConfigError where it would
    conflict with what is there, and PenstockError where it does not start: of what was there before
    everything then goes on.
    """
    routing = config.routing
    found = details()
    if found is not None:
        _check_place(config, found)
    before = deployed(config.name)
    serve.start(
        proxy_location="EveryNode",
        http_options={
            "host": routing.host,
            "port": routing.port,
            "ssl_certfile": routing.tls_cert,
            "ssl_keyfile": routing.tls_key,
        },
    )
    target = serve.RunTarget(
        application(config), name=config.name, route_prefix=_PREFIX, logging_config=None
    )
    serve.run_many([target], wait_for_applications_running=False)
    last = None
    while True:
        status = deployed(config.name)
        if status is not None and status != last:
            last = status
            told(status)
        if status is not None and status.state == "RUNNING":
            return status
        if status is not None and status.state in ("DEPLOY_FAILED", "UNHEALTHY"):
            why = status.error or "Ray says nothing of why it does not run"
            if before is not None and before.ready:
                why += "; the replicas that were there before go on"
            raise PenstockError(why)
        time.sleep(_LOOK_S)


def deployed(name: str) -> DeploymentStatus | None:
    """The deployment of this name."""
    return next((each for each in all_deployed() if each.name == name), None)


def all_deployed() -> list[DeploymentStatus]:
    """All deployments of Penstock's."""
    found = details()
    applications = {} if found is None else found["applications"]
    statuses = (
        deployment_status(name, each, REPLICAS, INGRESS) for name, each in applications.items()
    )
    return [each for each in statuses if each is not None]


def take_down(name: str, told: Told) -> None:
    """End a deployment: what is open has its grace. Returns once it is gone."""
    before = deployed(name)
    serve.delete(name, _blocking=False)
    # Ray does not tell of the parts of what ends, and they run on meanwhile.
    while name in ((details() or {}).get("applications") or {}):
        status = deployed(name) or before
        if status is not None:
            told(msgspec.structs.replace(status, state="DELETING"))
        time.sleep(_LOOK_S)


def release() -> None:
    """End Ray Serve, which holds the port, where nobody has anything deployed any more."""
    found = details()
    if found is not None and not found["applications"]:
        serve.shutdown()


def details() -> dict[str, Any] | None:
    """All that Ray Serve tells; None where it does not run."""
    try:
        client = _get_global_client(raise_if_no_controller_running=False)
    except ray.exceptions.RayError:
        return None
    if client is None:
        return None
    found: dict[str, Any] = client.get_serve_details()
    return found


def _check_place(config: DeployConfig, found: dict[str, Any]) -> None:
    """Raise ConfigError where another deployment, or Ray Serve as it was started, is in the way."""
    for name, each in found["applications"].items():
        if name != config.name and each.get("route_prefix") == _PREFIX:
            raise ConfigError(
                f"{name!r} is deployed there already; take it down first, or give this one the "
                "same name to replace it"
            )
    there = found.get("http_options") or {}
    asked: Routing = config.routing
    for key, value, now in (
        ("port", asked.port, there.get("port")),
        ("host", asked.host, there.get("host")),
    ):
        if now is not None and now != value:
            raise ConfigError(
                f"routing.{key}: Ray Serve listens on {there.get('host')}:{there.get('port')} as "
                f"long as it runs; write {now!r}, or take everything down first"
            )
