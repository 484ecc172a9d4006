"""TCP sockets: bound, connected, and given up when the other host is gone."""

from __future__ import annotations

import socket
from typing import Final

from penstock.peers.address import Address

_IDLE_S, _INTERVAL_S = 10, 5
_GONE_MS: Final = 20_000
"""Milliseconds after which a host that acknowledges neither bytes nor probes is taken to be gone,
and so is one that takes nothing in."""


def bound(host: str, port: int) -> socket.socket:
    """Return a TCP socket that has an address of this machine, and does not listen yet. Raises
    OSError."""
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
        )
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from None
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        # What starts again may take over from connections of its predecessor that still close.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def connect(address: Address, timeout: float) -> socket.socket:
    """Return a connection. Raises OSError."""
    try:
        sock = socket.create_connection((address.host, address.port), timeout)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from None
    watch(sock)
    return sock


def watch(sock: socket.socket) -> None:
    """Have small frames sent at once, and the end of the other host noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_MS)
