"""Strangers are kept out, and both ends are told why."""

from __future__ import annotations

import socket
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, PenstockError
from penstock.peers import handshake
from penstock.peers.channel import HEADER, MAGIC, VERSION, Channel, EndedError, Inbound
from penstock.peers.handshake import GREETING, Hello, Party, Proof, Refused
from penstock.peers.secret import SecretOption
from penstock.processes.frames import WireError

OPTION = SecretOption("--secret-file", "SECRET")
SECRET, OTHER = b"0123456789abcdef", b"fedcba9876543210"


class Note(msgspec.Struct, tag="note", frozen=True):
    text: str


INBOUND = Inbound(Note, 1 << 10)


def guest(secret: bytes = SECRET, role: str = "guest", other: str = "host") -> Party:
    return Party(role, other, OPTION, secret)


def host(secret: bytes = SECRET) -> Party:
    return Party("host", "guest", OPTION, secret)


def outcome(party: Party, sock: socket.socket, connected: bool) -> Any:
    """A channel, or an error."""
    try:
        return party.greet(sock, INBOUND, connected=connected)
    except (PenstockError, OSError) as error:
        return error


def meet(one: Party, other: Party, ours: Any = None, theirs: Any = None) -> tuple[Any, Any]:
    """What comes of a handshake at both ends, the one that connected first."""
    if ours is None:
        ours, theirs = socket.socketpair()
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(outcome(other, theirs, False)))
    thread.start()
    mine = outcome(one, ours, True)
    thread.join()
    return mine, got[0]


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_both_know_the_same(secret: bytes) -> None:
    one, other = meet(guest(secret), host(secret))
    for sender, receiver in ((one, other), (other, one)):
        sender.send(Note("x"))
        assert receiver.receive().message == Note("x")
    one.close()
    with pytest.raises(EndedError):
        other.receive()
    other.close()


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (guest(SECRET), host(OTHER), "the guest has another secret than the host; give both the"),
        (guest(SECRET), host(b""), "the guest has a secret and the host has none; give both the"),
        (guest(b""), host(SECRET), "the host has a secret and the guest has none; give both the"),
        (guest(role="thief"), host(), "the host takes a guest at the other end, no 'thief'"),
        (guest(other="inn"), host(), "the guest takes a inn at the other end, no 'host'"),
    ],
)
def test_who_is_refused_is_told_why(one: Party, other: Party, message: str) -> None:
    errors = meet(one, other)
    assert [type(error) for error in errors] == [ConfigError, ConfigError]
    assert all(message in str(error) for error in errors)


def pretending(connected: bool) -> tuple[Channel[Any], threading.Thread, list[Any]]:
    """A channel to a party that knows the secret, from an end that does not."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    party, got = (guest() if connected else host()), list[Any]()
    thread = threading.Thread(target=lambda: got.append(outcome(party, theirs, connected)))
    thread.start()
    return Channel(ours, GREETING), thread, got


def test_a_proof_can_neither_be_guessed_nor_sent_back() -> None:
    channel, thread, got = pretending(connected=False)
    channel.send(Hello(bytes(32), "guest", True))
    assert isinstance(channel.receive().message, Hello)
    channel.send(Proof(bytes(32)))
    assert "another secret" in channel.receive().message.why
    with pytest.raises(EndedError):
        channel.receive()
    thread.join()
    assert isinstance(got[0], ConfigError)
    channel, thread, got = pretending(connected=True)
    assert isinstance(channel.receive().message, Hello)
    channel.send(Hello(bytes(32), "host", True))
    channel.send(channel.receive().message)
    assert "another secret" in channel.receive().message.why
    thread.join()
    assert isinstance(got[0], ConfigError)


def test_a_recorded_handshake_is_of_no_use() -> None:
    """Who repeats all that a guest has sent is refused, since the host's nonce is another."""
    sent: list[bytes] = []
    mine, other = relayed(lambda data: sent.append(data) or data, lambda data: data)
    mine.close()
    other.close()
    ours, theirs = socket.socketpair()
    ours.sendall(b"".join(sent))
    assert "another secret" in str(outcome(host(), theirs, False))
    ours.close()


def relayed(there: Any, back: Any) -> tuple[Any, Any]:
    """What comes of a handshake where somebody in between changes what is sent."""
    pairs = [socket.socketpair() for _ in range(2)]

    def relay(source: socket.socket, target: socket.socket, change: Any) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(change(data))
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    (mine, left), (right, theirs) = pairs
    threads = [
        threading.Thread(target=relay, args=(left, right, there), daemon=True),
        threading.Thread(target=relay, args=(right, left, back), daemon=True),
    ]
    for thread in threads:
        thread.start()
    return meet(guest(), host(), mine, theirs)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)  # a third of a second each
@given(st.data())
def test_who_changes_a_handshake_is_noticed(data: st.DataObject) -> None:
    """One end finds out, at least; the other then finds the connection ended."""
    at, bit = data.draw(st.integers(0, 100)), 1 << data.draw(st.integers(0, 7))
    passed = 0

    def change(piece: bytes) -> bytes:
        nonlocal passed
        place, passed = at - passed, passed + len(piece)
        if 0 <= place < len(piece):
            piece = piece[:place] + bytes([piece[place] ^ bit]) + piece[place + 1 :]
        return piece

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handshake, "HANDSHAKE_S", 0.2)  # where a size was changed, more is waited for
        changes = (change, lambda piece: piece)
        ends = relayed(*(changes if data.draw(st.booleans()) else changes[::-1]))
    assert passed > at
    assert any(isinstance(end, Exception) for end in ends)
    for end in ends:
        if isinstance(end, Channel):
            end.set_timeout(10)
            with pytest.raises((PenstockError, OSError)):
                end.receive()
            end.close()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=100))
def test_garbage_is_no_handshake(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(data)
    ours.shutdown(socket.SHUT_WR)
    assert isinstance(outcome(host(), theirs, False), WireError | EndedError)
    ours.close()


@pytest.mark.parametrize(
    "message", [Proof(bytes(32)), Hello(bytes(31), "guest", True), Refused("why")]
)
def test_messages_out_of_turn(message: Any) -> None:
    channel, thread, got = pretending(connected=False)
    channel.send(message)
    thread.join()
    assert isinstance(got[0], PenstockError)
    channel.close()


def test_another_version_is_named_at_both_ends() -> None:
    channel, thread, got = pretending(connected=False)
    channel._sock.sendall(HEADER.pack(MAGIC, VERSION + 1, 0, 0, 0))
    answer = channel.receive().message
    thread.join()
    for said in (answer.why, str(got[0])):
        told = (
            f"the peer speaks version {VERSION + 1} of this protocol, and this is version {VERSION}"
        )
        assert told in said
    channel.close()


def test_a_stranger_may_announce_little() -> None:
    channel, thread, got = pretending(connected=False)
    channel._sock.sendall(HEADER.pack(MAGIC, VERSION, 0, 5000, 0))
    thread.join()
    assert "announces 5000 bytes, more than 4096" in str(got[0])
    channel.close()


def test_who_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.1)
    _ours, theirs = socket.socketpair()
    assert isinstance(outcome(host(), theirs, False), TimeoutError)
    assert theirs.fileno() == -1
