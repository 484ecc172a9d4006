"""TCP connections between hosts: opened with patience, and given up when the other host is gone."""

from __future__ import annotations

import socket
import time
from typing import Final

from penstock.errors import EngineDeadError
from penstock.resolve.stages import split_address

CONNECT_S: Final = 30.0
"""Seconds in which a stage must be there: one that another engine has left takes a moment."""
_PAUSE_S: Final = 0.25
_IDLE_S, _INTERVAL_S, _PROBES = 10, 5, 4
"""A host that answers no probes is taken to be gone after half a minute."""


def connect(address: str) -> socket.socket:
    """Return a connection to ``HOST:PORT``. Raises EngineDeadError where there is none in time."""
    host, port = split_address(address)
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=CONNECT_S)
        except OSError as error:
            if time.monotonic() < until and not isinstance(error, socket.gaierror):
                time.sleep(_PAUSE_S)
                continue
            raise EngineDeadError(
                f"it cannot be reached: {error}; start it there with "
                f"'penstock stage MODEL --host {host} --port {port}'"
            ) from error
        prepare(sock)
        return sock


def prepare(sock: socket.socket) -> None:
    """Have small frames sent at once, and the end of the other host noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
