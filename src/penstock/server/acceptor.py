"""Accepting connections, up to what the limit of open file descriptors allows."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

BACKLOG = 2048
BATCH = 64
"""Most connections accepted in a row before other tasks of the event loop run."""
RETRY_S = 1.0
"""Seconds to pause after the kernel had no descriptor or memory for a connection."""
LOG_EVERY_S = 60.0
"""Least seconds between two log lines about the same shortage."""

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger("penstock.server")


@dataclass(frozen=True)
class ConnectionLimit:
    """How many connections a process may have open."""

    connections: int
    """Most connections that are served."""
    refusals: int
    """Most further connections, which get a 503 response."""

    @classmethod
    def of_process(cls) -> ConnectionLimit:
        """Return what the limit of open files leaves after a reserve for files, pipes and new
        engines."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            limit = 1 << 20
        refusals = max(2, min(64, limit // 16))
        reserve = max(8, min(128, limit // 8))
        used = len(os.listdir("/proc/self/fd"))
        return cls(max(1, limit - used - reserve - refusals), refusals)


class Place:
    """The place of one connection within a ConnectionLimit."""

    def __init__(self, refused: bool, free: Callable[[], None]) -> None:
        self.refused = refused
        """Whether the limit was reached, so that the connection only gets a refusal."""
        self._free: Callable[[], None] | None = free

    def leave(self) -> None:
        """Give the place back when the connection has ended. Safe to repeat."""
        free, self._free = self._free, None
        if free is not None:
            free()


class Acceptor:
    """Accepts the connections of one listening socket. Belongs to one event loop.

    Beyond ``limit.connections`` a connection's place is a refused one. While those are taken too,
    or the kernel has no descriptor left, nothing is accepted, and connections wait in the kernel's
    queue. asyncio's own server would call ``accept`` again and again meanwhile.
    """

    def __init__(
        self,
        listener: socket.socket,
        connection: Callable[[Place], asyncio.Protocol],
        limit: ConnectionLimit,
        tls: ssl.SSLContext | None,
        handshake_s: float,
    ) -> None:
        self._listener = listener
        self._connection = connection
        self._limit = limit
        self._tls = tls
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._listening = False
        self._closed = False
        self._starting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._logged_at = -LOG_EVERY_S

    def start(self) -> None:
        """Start to accept. Raises OSError if the address is in use."""
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._resume()

    def close(self) -> None:
        """Stop accepting. The socket stays open: it belongs to the caller."""
        self._closed = True
        self._pause()
        if self._retry is not None:
            self._retry.cancel()
        for task in self._starting:
            task.cancel()

    async def wait_closed(self) -> None:
        if self._starting:
            await asyncio.wait(self._starting)

    def _resume(self) -> None:
        if not self._listening and not self._closed:
            self._loop.add_reader(self._listener, self._accept)
            self._listening = True

    def _pause(self) -> None:
        if self._listening:
            self._loop.remove_reader(self._listener)
            self._listening = False

    def _accept(self) -> None:
        for _ in range(BATCH):
            if self._open >= self._limit.connections + self._limit.refusals:
                self._pause()  # until one leaves
                return
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    continue  # that connection's own
                self._pause()
                self._retry = self._loop.call_later(RETRY_S, self._resume)
                self._log_once(f"no connection can be accepted ({error.strerror})")
                return
            self._enter(sock)

    def _enter(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._open += 1
        refused = self._open > self._limit.connections
        if refused:
            self._log_once(
                f"{self._limit.connections} connections are open, and others are refused"
            )
        task = self._loop.create_task(self._connect(sock, Place(refused, self._leave)))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _connect(self, sock: socket.socket, place: Place) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._connection(place),
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._handshake_s,
            )
        except (OSError, asyncio.CancelledError):  # a TLS handshake that fails, mostly
            place.leave()
            sock.close()

    def _leave(self) -> None:
        self._open -= 1
        if self._retry is None or self._retry.when() <= self._loop.time():
            self._resume()

    def _log_once(self, what: str) -> None:
        now = time.monotonic()
        if now - self._logged_at < LOG_EVERY_S:
            return
        self._logged_at = now
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        _log.error(
            "%s: this process may have %d files open; raise its limit (ulimit -n)", what, limit
        )
