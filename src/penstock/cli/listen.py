"""The socket that a server listens on."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
from collections.abc import Iterator

from penstock.errors import ConfigError
from penstock.peers.sockets import bound

_NOBODY, _NOBODY_6 = "192.0.2.1", "2001:db8::1"
"""Addresses of documentation (RFC 5737, RFC 3849), to which nothing is sent."""

STALL_S = 60
"""A connection whose peer takes nothing for so long is closed by the kernel: it reads no answer,
or it is gone without a word."""


def bind(host: str, port: int, stall_s: float = STALL_S) -> socket.socket:
    """A TCP socket bound to the address, not yet listening; raises ConfigError naming the cause.

    Its connections inherit that the kernel ends them where the peer takes nothing for ``stall_s``.
    """
    try:
        listener = bound(host, port)
    except socket.gaierror as error:
        raise ConfigError(f"--host {host!r} is no address of this machine: {error}") from None
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_s * 1000))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(stall_s)))
    return listener


def addresses(listener: socket.socket) -> list[str]:
    """The addresses, as they are written in a URL, by which ``listener`` is reached.

    One that listens everywhere is reached by this machine's loopback address, and by the address
    from which it would send to others.
    """
    host = listener.getsockname()[0]
    if host not in ("0.0.0.0", "::"):
        return [_in_url(host)]
    loopback, nobody = ("127.0.0.1", _NOBODY) if host == "0.0.0.0" else ("::1", _NOBODY_6)
    found = [_in_url(loopback)]
    # Connecting a datagram socket sends nothing; it fails where there is no network.
    with socket.socket(listener.family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((nobody, 9))
        found.append(_in_url(probe.getsockname()[0]))
    return found


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def raise_file_limit() -> None:
    """Let this process have as many files open as it is allowed to ask for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def address_in_use(host: str, port: int) -> Iterator[None]:
    """Serving on a bound address: raises ConfigError where somebody else listens there already."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise _cannot_listen(host, port, error) from None


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"port {port} on {host} is in use; stop the server that has it, or choose another "
            "with --port (0 picks a free one)"
        )
    return ConfigError(f"cannot listen on {host} port {port}: {error.strerror}")
