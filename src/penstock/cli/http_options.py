"""Options that all commands have which serve HTTP: where they listen, who may ask, the log."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.options import whole_number
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.server.hosts import HostRule
    from penstock.server.http_server import Tls
    from penstock.server.logs import LogOptions

RARE_HTTP: Final = frozenset({"--cors-origin", "--allowed-host", "--log-format", "--log-level"})
"""Those of them that ``--help`` leaves out."""


def add_listen_arguments(group: argparse._ArgumentGroup, port: int) -> None:
    """``port`` is the usual one."""
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    group.add_argument(
        "--port",
        type=port_number,
        default=port,
        help=f"port to listen on; 0 picks one (default: {port})",
    )
    group.add_argument(
        "--grace",
        type=whole_number,
        default=30,
        metavar="SECONDS",
        help="how long open requests may go on after a signal to stop (default: 30)",
    )
    group.add_argument(
        "--request-timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long one request may take, waiting included (default: no limit)",
    )


def add_access_arguments(group: argparse._ArgumentGroup, unless: str = "") -> None:
    """``unless`` says when any name does."""
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve HTTPS: certificates")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="serve HTTPS: private key")
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin ask from a browser, '*' for all; may be repeated",
    )
    group.add_argument(
        "--allowed-host",
        action="append",
        type=_host_name,
        default=[],
        metavar="NAME",
        help="a name or address by which clients may ask, beside localhost, this machine's name "
        f"and its addresses; '*' for all; may be repeated{unless}",
    )


def add_log_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The options of the log; returns their group."""
    group = parser.add_argument_group("log, on standard error")
    group.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="(default: text)"
    )
    group.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="info has a line for each request (default: info)",
    )
    group.add_argument(
        "--no-access-log", action="store_true", help="leave out the lines for each request"
    )
    return group


def check_tls(args: argparse.Namespace) -> None:
    """Raise ConfigError for certificates that would fail once requests are taken."""
    certificate: Path | None = args.tls_cert
    key: Path | None = args.tls_key
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise ConfigError("HTTPS needs both --tls-cert and --tls-key")
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{certificate} and {key} are no certificate and its private key: "
            f"{error.strerror or error}"
        ) from None


def tls(args: argparse.Namespace) -> Tls | None:
    from penstock.server.http_server import Tls

    return None if args.tls_cert is None else Tls(args.tls_cert, args.tls_key)


def host_rule(args: argparse.Namespace, address: str, keys_needed: bool) -> HostRule | None:
    """Which Host headers are taken by a server that listens on ``address``."""
    from penstock.server.hosts import HostRule

    return HostRule.of(args.host, address, args.allowed_host, keys_needed)


def log_options(args: argparse.Namespace) -> LogOptions:
    from penstock.server.logs import LogOptions

    return LogOptions(args.log_format, args.log_level, not args.no_access_log)


def port_number(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"not a port from 0 to 65535: {text!r}")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"not a number of seconds above 0: {text!r}")
    return value


def _host_name(text: str) -> str:
    from penstock.server.hosts import plain_host

    try:
        return plain_host(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"not the name or address of a host, without a port, or '*': {text!r}"
        ) from None


def _no_password() -> str:
    raise ConfigError("the private key of --tls-key is encrypted; give one that is not")
