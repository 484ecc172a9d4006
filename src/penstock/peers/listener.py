"""Takes the connections of peers, each greeted by a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import ConfigError, PenstockError
from penstock.peers.address import Address
from penstock.peers.channel import Channel, Inbound
from penstock.peers.handshake import Party
from penstock.peers.sockets import bound, watch

STRANGERS: Final = 16
"""Connections that may be in their handshake at once; more are closed. Those who say nothing keep
others out no longer than a handshake may take."""
_PAUSE_S: Final = 0.1


class Listener:
    """A socket on which peers are waited for."""

    def __init__(self, address: Address, option: str) -> None:
        """Take the address, given by ``option``, without listening yet. Raises ConfigError where it
        cannot be had."""
        try:
            self._socket = bound(address.host, address.port)
        except OSError as error:
            raise ConfigError(
                f"{option} {address}: {error.strerror or error}; choose another address or port"
            ) from None
        # The port, where 0 was asked for.
        self.address = Address(*self._socket.getsockname()[:2])
        self._strangers = threading.BoundedSemaphore(STRANGERS)
        self._closed = False

    def start(
        self,
        party: Party,
        inbound: Inbound,
        serve: Callable[[Channel[Any], str], None],
        say: Callable[[str], None],
    ) -> None:
        """Take connections. ``serve`` is called with each peer that has proved itself, and its
        name, in a thread of its own; ``say`` is told of those that have not."""

        def greet(sock: socket.socket, name: str) -> None:
            try:
                watch(sock)
                channel = party.greet(sock, inbound, connected=False)
            except (PenstockError, OSError) as error:
                say(f"{name} is not taken as {party.other}: {error}")
                sock.close()
                return
            finally:
                self._strangers.release()
            serve(channel, name)

        def accept() -> None:
            while not self._closed:
                try:
                    sock, found = self._socket.accept()
                except OSError as error:
                    if not self._closed:
                        say(f"no connection can be taken: {error}")
                        time.sleep(_PAUSE_S)  # as while there are no file descriptors left
                    continue
                if not self._strangers.acquire(blocking=False):
                    sock.close()
                    continue
                name = str(Address(*found[:2]))
                threading.Thread(target=greet, args=(sock, name), daemon=True).start()

        self._socket.listen()
        threading.Thread(target=accept, name="penstock-listen", daemon=True).start()

    def close(self) -> None:
        """Take no further connections; those that were taken go on."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
