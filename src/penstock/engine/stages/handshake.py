"""How an engine and a stage on another host make sure of each other before anything is loaded.

Both prove that they know a secret without showing it: each sends a random nonce, and an HMAC
(RFC 2104, with SHA-256) of both nonces and of its role, keyed by the secret. A key of this
connection alone, made of the same, then seals every frame. Nothing is encrypted: who can read the
network can read hidden states, and needs a tunnel to be kept out.

Without a secret, which is allowed on this machine's own addresses alone, anybody who reaches the
port is an engine.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.engine.stages.channel import Channel
from penstock.engine.stages.wire import FromStage, ToStage
from penstock.errors import ConfigError
from penstock.processes.frames import WireError

SECRET_VARIABLE: Final = "PENSTOCK_PIPELINE_SECRET"
LEAST_SECRET_BYTES: Final = 16
HANDSHAKE_S: Final = 10.0
"""Seconds that each message of a handshake may take."""
_MAX_BYTES: Final = 4096
"""Largest message of somebody who has proved nothing yet."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first message of either end."""

    nonce: bytes
    has_secret: bool


class Proof(msgspec.Struct, tag="proof", frozen=True):
    """That the sender knows the secret."""

    mac: bytes


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """Why nothing comes of it."""

    message: str


Handshake = Hello | Proof | Refused


def read_secret(file: str | None) -> bytes | None:
    """Return the secret of a file, or of the environment; None if there is neither. Raises
    ConfigError."""
    if file is not None:
        try:
            path = Path(file)
            if path.stat().st_mode & 0o077:
                raise ConfigError(
                    f"others may read {file}, which has the secret of a pipeline; chmod 600 it"
                )
            secret = path.read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from error
        where = file
    else:
        secret = os.environ.get(SECRET_VARIABLE, "").encode().strip()
        where = SECRET_VARIABLE
        if not secret:
            return None
    if len(secret) < LEAST_SECRET_BYTES:
        raise ConfigError(
            f"{where} has {len(secret)} bytes of secret, and {LEAST_SECRET_BYTES} are needed; "
            "make one with: openssl rand -hex 32"
        )
    return secret


def is_own_address(host: str) -> bool:
    """Whether ``host`` is an address of this machine that no other reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def as_engine(sock: socket.socket, secret: bytes | None) -> Channel[FromStage]:
    """Greet a stage; return the channel to it. Raises ConfigError where it refuses or is refused,
    WireError on what is no handshake, TimeoutError and OSError."""
    sock.settimeout(HANDSHAKE_S)
    channel = _Greeting(sock, "engine")
    own, other = channel.greet(secret)
    key = b""
    if secret is not None:
        channel.send(Proof(_mac(secret, b"engine", own, other)))
        proof = channel.expect(Proof)
        if not hmac.compare_digest(proof.mac, _mac(secret, b"stage", own, other)):
            raise ConfigError("it does not know the secret, though it lets everybody in")
        key = _mac(secret, b"session", own, other)
    return channel.rekeyed(key, FromStage)


def as_stage(sock: socket.socket, secret: bytes | None) -> Channel[ToStage]:
    """Let an engine in; return the channel to it. Raises ConfigError where it is refused or
    refuses, WireError on what is no handshake, TimeoutError and OSError."""
    sock.settimeout(HANDSHAKE_S)
    channel = _Greeting(sock, "stage")
    own, other = channel.greet(secret)
    key = b""
    if secret is not None:
        proof = channel.expect(Proof)
        if not hmac.compare_digest(proof.mac, _mac(secret, b"engine", other, own)):
            channel.refuse("the engine has another secret than the stage")
        channel.send(Proof(_mac(secret, b"stage", other, own)))
        key = _mac(secret, b"session", other, own)
    return channel.rekeyed(key, ToStage)


class _Greeting(Channel[Handshake]):
    """A channel before both ends are sure of each other."""

    def __init__(self, sock: socket.socket, side: Any) -> None:
        super().__init__(sock, side, Handshake, limit=_MAX_BYTES)
        self._is_engine = side == "engine"

    def greet(self, secret: bytes | None) -> tuple[bytes, bytes]:
        """Exchange nonces; return one's own and the other's. The engine speaks first, so that a
        stage tells nothing to who says nothing."""
        own = Hello(secrets.token_bytes(32), secret is not None)
        if self._is_engine:
            self.send(own)
        other = self.expect(Hello)
        if len(other.nonce) != 32:
            raise WireError(f"a nonce has {len(other.nonce)} bytes")
        if own.has_secret != other.has_secret:
            one = own.has_secret if self._is_engine else other.has_secret
            has, lacks = ("engine", "stage") if one else ("stage", "engine")
            self.refuse(
                f"the {has} has a secret and the {lacks} has none; give both the same, by "
                f"--pipeline-secret-file or {SECRET_VARIABLE}"
            )
        if not self._is_engine:
            self.send(own)
        return own.nonce, other.nonce

    def expect(self, kind: type[Any]) -> Any:
        message = self.receive()
        if isinstance(message, Refused):
            raise ConfigError(message.message)
        if message is None:
            raise WireError("the connection ended within the handshake")
        if not isinstance(message, kind):
            raise WireError(f"a {type(message).__name__} message came out of turn")
        return message

    def refuse(self, message: str) -> None:
        """Tell the other end, and raise ConfigError."""
        self.send(Refused(message))
        raise ConfigError(message)


def _mac(secret: bytes, role: bytes, engine_nonce: bytes, stage_nonce: bytes) -> bytes:
    words = b"penstock pipeline 1 " + role
    return hmac.new(secret, words + engine_nonce + stage_nonce, hashlib.sha256).digest()
