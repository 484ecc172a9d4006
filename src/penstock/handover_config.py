"""The role of an engine that computes prompts for others, or has them computed by others."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ConfigError

LEAST_KEY_BYTES: Final = 16


class Address(msgspec.Struct, frozen=True):
    """A host, by name or number, and a TCP port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, least_port: int = 1) -> Address:
        """``HOST:PORT``, or ``[HOST]:PORT`` of IPv6. Raises ConfigError."""
        host, _, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        valid = port.isdecimal() and least_port <= int(port) < 1 << 16
        if not host or not valid or (":" in host) != bracketed:
            raise ConfigError(f"not HOST:PORT: {text!r} (like 10.0.0.7:8100, or [::1]:8100)")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PrefillRole(msgspec.Struct, tag="prefill", frozen=True, kw_only=True):
    """The engine computes prompts for decode engines that connect to it, beside those that it
    answers itself."""

    listen: Address
    key: bytes = b""
    """The secret that both sides have; empty: anybody may connect, from this machine alone."""

    def check(self) -> None:
        """Raise ConfigError where others than this machine could connect without a key."""
        _check_key(self.key, [self.listen], "--handover-listen")


class DecodeRole(msgspec.Struct, tag="decode", frozen=True, kw_only=True):
    """The engine lets prefill engines compute long prompts, and goes on from there."""

    prefill: tuple[Address, ...]
    key: bytes = b""
    least_tokens: int | None = None
    """Fewest tokens of a prompt that are not cached and worth a handover; None: measured."""
    max_wait_s: float = 10.0
    """A prompt is computed here if a prefill engine would not have done so within this time."""
    timeout_s: float = 30.0
    """Seconds without a block after which a prompt is computed here."""
    any_kernels: bool = False
    """Whether a prefill engine may have another backend or instruction set, whose keys and values
    may differ in the last bits."""

    def check(self) -> None:
        """Raise ConfigError for a prefill engine on another machine without a key."""
        if not self.prefill:
            raise ConfigError("a decode engine needs a prefill engine; name one with --prefill")
        if len(set(self.prefill)) < len(self.prefill):
            raise ConfigError("--prefill names a prefill engine twice")
        _check_key(self.key, self.prefill, "--prefill")


Role = PrefillRole | DecodeRole


def read_key(path: Path) -> bytes:
    """The secret in a file, without white space around it. Raises ConfigError."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--handover-key-file {path}: {error.strerror}") from None
    if len(key) < LEAST_KEY_BYTES:
        raise ConfigError(
            f"--handover-key-file {path}: {len(key)} bytes are no secret; it needs "
            f"{LEAST_KEY_BYTES} at least (openssl rand -hex 32 makes some)"
        )
    return key


def _check_key(key: bytes, addresses: list[Address] | tuple[Address, ...], option: str) -> None:
    for address in addresses:
        if not key and not address.is_loopback:
            raise ConfigError(
                f"{option} {address} is not on this machine alone, so that both sides need the "
                "same secret; give it with --handover-key-file FILE"
            )
