"""The messages between a decode engine and a prefill engine, one in each frame (``link.py``)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.engine.handover.identity import HandoverIdentity
from penstock.interface.messages import Tenant

PROTOCOL: Final = 1
"""Version of messages and frames. Both sides have the same."""

BEAT_S: Final = 1.0
"""Seconds between signs of life of a prefill engine."""
SILENCE_S: Final = 5.0
"""Seconds without any byte after which it counts as gone."""
HANDSHAKE_S: Final = 5.0
"""Seconds for all of a handshake."""

MESSAGE_BYTES: Final = 64 << 10
"""Most bytes of a message, besides the tokens of :class:`Ask`."""
PIECE_BYTES: Final = 8 << 20
"""Most bytes of blocks that go with one message, but for a single block that is larger."""

Side = Literal["decode", "prefill"]


class Hello(msgspec.Struct, tag="hello", frozen=True, kw_only=True):
    """The first message of each side."""

    protocol: int
    side: Side
    nonce: bytes
    """Drawn for this connection."""
    keyed: bool
    """Whether this side has a key."""
    identity: HandoverIdentity
    group_bytes: tuple[int, ...]
    """Bytes of a block, for each group of layers."""


class Proof(msgspec.Struct, tag="proof", frozen=True):
    """The second message of each side: that it has the key. Empty where there is none."""

    mac: bytes


class NotTaken(msgspec.Struct, tag="not_taken", frozen=True):
    """The other side's Hello or Proof is refused, and the connection closed."""

    why: str


class Ask(msgspec.Struct, tag="ask", frozen=True, kw_only=True):
    """A decode engine asks: compute whole blocks of a prompt, and send them."""

    number: int
    """Names the handover on this connection; ascending."""
    token_ids: bytes
    """The tokens of these blocks, each an int32."""
    first: int
    """Blocks that are there already: those behind are wanted."""
    salt: str = ""
    priority: int = 0
    tenant: Tenant = Tenant()


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """A decode engine says: what comes of this handover is not wanted any more."""

    number: int


class Blocks(msgspec.Struct, tag="blocks", frozen=True, kw_only=True):
    """A prefill engine sends consecutive blocks of a group of layers, whose bytes
    (``interface/blocks.py``) follow the message."""

    number: int
    group: int
    first: int
    """Place of the first block in the prompt."""
    checksums: tuple[int, ...]
    """CRC-32C of each block."""


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """A prefill engine says: nothing more comes of this handover. ``error`` says why it is not
    all."""

    number: int
    error: str = ""


class Beat(msgspec.Struct, tag="beat", frozen=True):
    """A prefill engine says, at least every BEAT_S seconds, how busy it is."""

    queued_tokens: int
    """Tokens of prompts that it was asked for and has not computed."""
    tokens_per_s: float
    """How fast it computes prompts; 0 while that is not known."""


FromDecode = Hello | Proof | NotTaken | Ask | Cancel
FromPrefill = Hello | Proof | NotTaken | Blocks | Ended | Beat
Message = Hello | Proof | NotTaken | Ask | Cancel | Blocks | Ended | Beat
