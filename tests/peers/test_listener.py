"""A port that strangers reach, too."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from support.waiting import PATIENCE_S, until

from penstock.errors import ConfigError
from penstock.peers.address import Address
from penstock.peers.channel import Channel, Inbound
from penstock.peers.handshake import Party
from penstock.peers.listener import STRANGERS, Listener
from penstock.peers.secret import SecretOption
from penstock.peers.sockets import connect

SECRET = b"0123456789abcdef"
OPTION = SecretOption("--secret-file", "SECRET")
HERE = Address("127.0.0.1", 0)


class Note(msgspec.Struct, tag="note", frozen=True):
    text: str


INBOUND = Inbound(Note, 1 << 10)


class Echo:
    """A listener whose peers get back what they send."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.listener = Listener(HERE, "--listen")
        party = Party("host", "guest", OPTION, SECRET)
        self.listener.start(party, INBOUND, self._serve, self.said.append)

    def _serve(self, channel: Channel[Any], name: str) -> None:
        channel.send(channel.receive().message)
        channel.close()

    def visit(self) -> None:
        sock = connect(self.listener.address, PATIENCE_S)
        channel = Party("guest", "host", OPTION, SECRET).greet(sock, INBOUND, connected=True)
        channel.send(Note("x"))
        assert channel.receive().message == Note("x")
        channel.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    found = Echo()
    yield found
    found.listener.close()


def test_strangers_keep_nobody_out(echo: Echo) -> None:
    quiet = [connect(echo.listener.address, PATIENCE_S) for _ in range(STRANGERS - 1)]
    with connect(echo.listener.address, PATIENCE_S) as rude:
        rude.sendall(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n")
        until(lambda: echo.said, PATIENCE_S, "the rude one is named")
    assert "is not taken as guest: the peer is none of Penstock's" in echo.said[0]
    echo.visit()
    # As many as may be in their handshake: the next is closed at once, until one has left.
    quiet.append(connect(echo.listener.address, PATIENCE_S))
    with connect(echo.listener.address, PATIENCE_S) as late:
        assert late.recv(1) == b""
    quiet.pop().close()
    until(lambda: len(echo.said) == 2, PATIENCE_S, "one has left")
    echo.visit()
    for sock in quiet:
        sock.close()


def test_many_at_once(echo: Echo) -> None:
    threads = [threading.Thread(target=echo.visit) for _ in range(STRANGERS // 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert echo.said == []


def test_after_its_end_nobody_is_taken(echo: Echo) -> None:
    echo.listener.close()
    with pytest.raises(OSError, match="refused"):
        connect(echo.listener.address, PATIENCE_S)
    assert echo.said == []


def test_addresses_that_cannot_be_had(echo: Echo) -> None:
    for address, message in (
        (echo.listener.address, r"^--listen 127\.0\.0\.1:\d+: Address already in use; choose"),
        (Address("192.0.2.1", 0), r"^--listen 192\.0\.2\.1:0: .*; choose another address or port"),
        (Address("no.such.host.invalid", 1), r"^--listen no\.such.*; choose another address"),
        (Address("x" * 80, 1), r"^--listen xx.*; choose another address"),
    ):
        with pytest.raises(ConfigError, match=message):
            Listener(address, "--listen")
    with pytest.raises(OSError, match="label"):
        connect(Address("x" * 80, 1), PATIENCE_S)


def test_connections_are_watched(echo: Echo) -> None:
    """A host that is gone is noticed by the kernel."""
    with connect(echo.listener.address, PATIENCE_S) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
