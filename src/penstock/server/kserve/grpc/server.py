"""The server of gRPC, on a port of its own beside HTTP's."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import grpc
from starlette.types import ASGIApp

from penstock.errors import ConfigError
from penstock.server.http_server import Tls
from penstock.server.kserve.grpc.calls import Application
from penstock.server.kserve.grpc.service import Service
from penstock.server.kserve.grpc_options import GrpcOptions

LAST_WORDS_S = 2.0
"""Seconds for calls that are still open when the server ends."""


@contextlib.asynccontextmanager
async def serving_grpc(
    app: ASGIApp, options: GrpcOptions, max_message_bytes: int, tls: Tls | None
) -> AsyncGenerator[None, None]:
    """Serve gRPC's calls by ``app`` until this is left. Messages above ``max_message_bytes`` are
    refused. Raises ConfigError where the port cannot be had."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a port that another server has is no port for this one
        ],
        maximum_concurrent_rpcs=options.max_calls,
    )
    server.add_generic_rpc_handlers((Service(Application(app)).handlers(),))
    address = f"[{options.host}]" if ":" in options.host else options.host
    address = f"{address}:{options.port}"
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
            server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"gRPC cannot listen on {address}: {error}; choose another --grpc-port"
        ) from None
    await server.start()
    try:
        yield
    finally:
        await server.stop(LAST_WORDS_S)
