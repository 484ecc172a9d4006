"""Options of the dialect over gRPC."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from penstock.errors import ConfigError

INSTALL = "pip install 'penstock[grpc]'"


@dataclass(frozen=True)
class GrpcOptions:
    host: str
    port: int
    max_calls: int = 4096
    """Calls that may be open at once; more are refused. Each stream is one."""


def installed() -> bool:
    """Whether the packages of the extra ``grpc`` are installed."""
    try:
        found = map(importlib.util.find_spec, ("grpc", "google.protobuf"))
        return all(spec is not None for spec in found)
    except ModuleNotFoundError:  # of a package above
        return False


def grpc_options(host: str, port: int | None) -> GrpcOptions | None:
    """What ``--grpc-port`` asks for; None: no gRPC. Raises ConfigError for what is no port, and
    where its packages are missing."""
    if port is None:
        return None
    if not 1 <= port <= 65535:
        raise ConfigError(f"--grpc-port must be from 1 to 65535, not {port}")
    if not installed():
        raise ConfigError(f"--grpc-port asks for gRPC, which is not installed: {INSTALL}")
    return GrpcOptions(host, port)
