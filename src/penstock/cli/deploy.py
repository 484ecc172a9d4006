"""Run a fleet of servers on Ray Serve, which places, watches, scales and replaces them.

  penstock deploy fleet.toml
  penstock deploy --status
  penstock deploy --down
  penstock deploy fleet.toml --manifests kubernetes

CONFIG is a TOML file: the model, the options of 'penstock serve', how many replicas there are and
when there are more, and where requests come in; an empty one is a server of the demo model at
127.0.0.1:9000. Applied again after a change, it replaces replicas without a failed request.
Without --address, Ray is started on this machine, for this user alone, and goes on when the
command has ended. Needs pip install 'penstock[ray]', but for --manifests. docs/deploy.md says more.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from penstock.cli.parser import Parser, UsageError
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.deploy.config import DeployConfig
    from penstock.deploy.own_ray import OwnRay
    from penstock.deploy.status import DeploymentStatus

NOTHING: Final = "nothing is deployed"
_KINDS: Final = ("kuberay", "kubernetes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="CONFIG",
        help="a TOML file: what to deploy; with --status and --down, whose name is meant",
    )
    group = parser.add_argument_group("instead of deploying")
    group = group.add_mutually_exclusive_group()
    group.add_argument("--status", action="store_true", help="show what is deployed")
    group.add_argument(
        "--down",
        action="store_true",
        help="take it down; open requests may end, for as long as replicas.grace",
    )
    group.add_argument(
        "--manifests",
        choices=_KINDS,
        help="print what Kubernetes is to be given for it; needs kubernetes.image in CONFIG",
    )
    group = parser.add_argument_group("where")
    group.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the head of a Ray cluster that runs (default: Ray on this machine, started where "
        "needed)",
    )
    parser.add_argument(
        "--json", action="store_true", help="with --status, print an object of JSON"
    )


def run(args: argparse.Namespace) -> int:
    if args.config is None and not (args.status or args.down):
        raise UsageError("name a CONFIG, a TOML file; docs/deploy.md has one to begin with")
    config = None if args.config is None else _config(args.config)
    if args.manifests:
        from penstock.deploy import manifests

        assert config is not None
        print(manifests.text(args.manifests, config), end="")
        return 0
    if args.address is not None:
        _check_address(args.address)
    own = _prepared(args.address)
    if args.status:
        return _status(args, own, config)
    if args.down:
        return _down(args, own, config)
    assert config is not None
    return _deploy(config, args.address, own)


def _check_address(address: str) -> None:
    _, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"--address {address}: write HOST:PORT, such as 10.0.0.1:6379")


def _config(path: Path) -> DeployConfig:
    """What the file says, with options that ``penstock serve`` has. Raises ConfigError naming the
    file, the key and the fix."""
    from penstock.deploy.config import DeployConfig

    config = DeployConfig.read(path)
    try:
        _check_options(config)
    except UsageError as error:
        raise ConfigError(f"{path}: {error}") from None
    return config


def _check_options(config: DeployConfig) -> None:
    from penstock.cli.options import engine_config
    from penstock.cli.serve_options import add_arguments as add_serve_arguments
    from penstock.deploy.words import option_words

    for key, value in config.serve.items():
        parser = Parser("penstock serve", "")
        add_serve_arguments(parser)
        try:
            engine_config(parser.parse(option_words(key, value)))
        except UsageError as error:
            why = str(error).partition("; see '")[0]
            raise UsageError(f"serve.{key}: {why}") from None


def _prepared(address: str | None) -> OwnRay | None:
    """Ray of our own, for which the environment is prepared; None with an address. Raises
    ConfigError where there is no Ray to import."""
    from importlib.util import find_spec

    from penstock.deploy.own_ray import OwnRay

    if find_spec("ray") is None:
        raise ConfigError("'penstock deploy' needs Ray: pip install 'penstock[ray]'")
    if address is not None:
        return None
    own = OwnRay.of_user(os.environ)
    own.prepare(os.environ)
    return own


def _deploy(config: DeployConfig, address: str | None, own: OwnRay | None) -> int:
    begun = False
    if own is not None and own.address is None:
        _check_port(config)
        print("starting Ray on this machine", file=sys.stderr)
        begun = True
    if address is None:
        assert own is not None
        address = own.start(os.environ)
    cluster = _cluster()
    try:
        with cluster.connected(address):
            status = cluster.apply(config, Teller())
    except PenstockError:
        if begun and own is not None:
            own.stop()
        raise
    except KeyboardInterrupt:
        print(
            "this command ends, and Ray goes on: 'penstock deploy --status' shows how far it is, "
            "'penstock deploy --down' takes it down",
            file=sys.stderr,
        )
        raise
    routing = config.routing
    scheme = "http" if routing.tls_cert is None else "https"
    print(f"{config.name} serves at {scheme}://{routing.host}:{routing.port}/v1")
    print(_line(status))
    return 0


def _status(args: argparse.Namespace, own: OwnRay | None, config: DeployConfig | None) -> int:
    import msgspec

    address = _running(args.address, own)
    if address is None:
        raise PenstockError(NOTHING)
    cluster = _cluster()
    with cluster.connected(address):
        found = _chosen(cluster.all_deployed(), config)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(found[0]), indent=1).decode())
        return 0
    for each in found:
        print(_line(each))
    return 0


def _down(args: argparse.Namespace, own: OwnRay | None, config: DeployConfig | None) -> int:
    address = _running(args.address, own)
    if address is None:
        raise PenstockError(NOTHING)
    cluster = _cluster()
    with cluster.connected(address):
        found = cluster.all_deployed()
        for each in _chosen(found, config):
            # Ray waits for replicas that it could not place yet as for others; its end does not.
            if own is None or each.ready:
                cluster.take_down(each.name, Teller())
        cluster.release()
    if own is not None:
        own.stop()
    return 0


def _check_port(config: DeployConfig) -> None:
    """Raise ConfigError where clients could not reach the fleet: Ray itself would say nothing."""
    from penstock.cli.listen import bind

    host, port = config.routing.host, config.routing.port
    try:
        bind(host, port).close()
    except ConfigError as error:
        why = str(error).partition(";")[0].removeprefix("--host ")
        key = "host" if "no address" in why else "port"
        raise ConfigError(f"routing.{key}: {why}; write another one") from None


def _cluster() -> ModuleType:
    """What knows Ray. Raises ConfigError where a part of Ray is missing, or too old."""
    try:
        return import_module("penstock.deploy.cluster")
    except ImportError as error:
        raise ConfigError(
            f"'penstock deploy' needs Ray Serve, 2.60 or later: pip install 'penstock[ray]' "
            f"({error})"
        ) from None


def _chosen(
    deployed: list[DeploymentStatus], config: DeployConfig | None
) -> list[DeploymentStatus]:
    """All, or those of a configuration's name. Raises PenstockError where there is none."""
    found = [each for each in deployed if config is None or each.name == config.name]
    if not found:
        names = ", ".join(each.name for each in deployed)
        raise PenstockError(f"what is deployed is called {names}" if names else NOTHING)
    return found


def _running(address: str | None, own: OwnRay | None) -> str | None:
    return own.address if own is not None else address


class Teller:
    """Says how a deployment is, whenever that has changed."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, status: DeploymentStatus) -> None:
        line = _line(status)
        if line != self._last:
            print(line, file=sys.stderr)
        self._last = line


def _line(status: DeploymentStatus) -> str:
    said = f"{status.name}: {status.state.lower()}, {status.ready} of {status.wanted} replicas"
    return f"{said}: {status.error}" if status.error else said
