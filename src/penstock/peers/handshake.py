"""How two ends make sure of each other before anything else is said.

Each sends a Hello with a random nonce, the one that has connected first, so that a listener tells
nothing to who says nothing. Each then proves that it knows the secret without showing it, by an
HMAC (RFC 2104, with SHA-256) over both Hellos and its role; keys of both directions are made of the
same. So a proof is of this connection and this end, and can neither be repeated nor sent back.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from penstock.errors import ConfigError
from penstock.peers.channel import Channel, Inbound, Keys
from penstock.peers.secret import SecretOption
from penstock.processes.frames import WireError

M = TypeVar("M", bound=msgspec.Struct)

HANDSHAKE_S: Final = 10.0
"""Seconds for all of a handshake, however slowly its bytes come."""
_NONCE_BYTES: Final = 32


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first message of either end."""

    nonce: bytes
    role: str
    has_secret: bool


class Proof(msgspec.Struct, tag="proof", frozen=True):
    """That the sender knows the secret."""

    mac: bytes


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """Why nothing comes of it."""

    why: str


Greeting = Hello | Proof | Refused
GREETING: Final = Inbound(Greeting, message_bytes=4096)


@dataclass(frozen=True)
class Party:
    """One end of connections: what it is, and whom it takes."""

    role: str
    """As errors name it: "decode engine"."""
    other: str
    option: SecretOption
    secret: bytes
    """Empty: the other end needs none either."""

    def greet(self, sock: socket.socket, inbound: Inbound, *, connected: bool) -> Channel[Any]:
        """Return the channel by which to go on, without a timeout, once the other end has proved
        itself; ``connected``: whether this end is the one that connected.

        Raises ConfigError where an end refuses the other, EndedError and WireError on what is no
        handshake, TimeoutError and OSError; the socket is closed then.
        """
        channel: Channel[Greeting] = Channel(sock, GREETING)
        try:
            channel.set_deadline(HANDSHAKE_S)
            keys = self._shake(channel, connected)
            channel.set_timeout(None)
        except BaseException as error:
            if isinstance(error, ConfigError | WireError):
                with contextlib.suppress(OSError):  # it is gone
                    channel.send(Refused(str(error)))
            channel.close()
            raise
        return Channel(sock, inbound, keys)

    def _shake(self, channel: Channel[Greeting], connected: bool) -> Keys | None:
        own = Hello(secrets.token_bytes(_NONCE_BYTES), self.role, bool(self.secret))
        if connected:
            channel.send(own)
        its = _expect(Hello, channel)
        if len(its.nonce) != _NONCE_BYTES:
            raise WireError(f"a nonce has {len(its.nonce)} bytes")
        if its.role != self.other:
            role = its.role[:40]  # anybody's words
            raise ConfigError(f"the {self.role} takes a {self.other} at the other end, no {role!r}")
        if own.has_secret != its.has_secret:
            has, lacks = (self.role, self.other) if own.has_secret else (self.other, self.role)
            raise ConfigError(
                f"the {has} has a secret and the {lacks} has none; give both the same, by "
                f"{self.option}"
            )
        if not connected:
            channel.send(own)
        if not self.secret:
            return None
        hellos = (own, its) if connected else (its, own)
        transcript = b"".join(map(msgspec.msgpack.encode, hellos))

        def mac(purpose: bytes, role: str) -> bytes:
            return hmac.digest(self.secret, purpose + role.encode() + transcript, "sha256")

        proof = Proof(mac(b"proof", self.role))
        if connected:
            channel.send(proof)
        if not hmac.compare_digest(_expect(Proof, channel).mac, mac(b"proof", self.other)):
            raise ConfigError(
                f"the {self.other} has another secret than the {self.role}; give both the same, by "
                f"{self.option}"
            )
        if not connected:
            channel.send(proof)
        return Keys(mac(b"frames", self.role), mac(b"frames", self.other))


def _expect(kind: type[M], channel: Channel[Greeting]) -> M:
    message = channel.receive().message
    if isinstance(message, Refused):
        raise ConfigError(message.why)
    if not isinstance(message, kind):
        raise WireError(f"a {type(message).__name__} message came out of turn")
    return message
