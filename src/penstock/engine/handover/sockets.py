"""TCP connections of handovers: options that both sides set."""

from __future__ import annotations

import socket
from typing import Final

_GONE_MS: Final = 10_000
"""Milliseconds after which bytes that nobody acknowledges end a connection."""


def prepare(sock: socket.socket) -> None:
    """Send messages at once, and notice a machine that is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_MS)
