"""The role of an engine that computes prompts for others, or has them computed by others."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.errors import ConfigError
from penstock.peers.address import Address
from penstock.peers.secret import SecretOption

SECRET: Final = SecretOption("--handover-key-file", "PENSTOCK_HANDOVER_KEY")


class PrefillRole(msgspec.Struct, tag="prefill", frozen=True, kw_only=True):
    """The engine computes prompts for decode engines that connect to it, beside those that it
    answers itself."""

    listen: Address
    key: bytes = b""
    """The secret that both sides have; empty: anybody may connect, from this machine alone."""

    def check(self) -> None:
        """Raise ConfigError where others than this machine could connect without a key."""
        SECRET.check(self.key, [self.listen], "--handover-listen")


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
        SECRET.check(self.key, self.prefill, "--prefill")


Role = PrefillRole | DecodeRole
