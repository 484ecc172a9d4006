"""The messages between a decode engine and a prefill engine, one in each frame
(``peers/channel.py``)."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.engine.block_identity import BlockIdentity
from penstock.interface.messages import Tenant

BEAT_S: Final = 1.0
"""Seconds between signs of life of a prefill engine."""
SILENCE_S: Final = 5.0
"""Seconds without any byte after which it counts as gone."""

MESSAGE_BYTES: Final = 64 << 10
"""Most bytes of a message, besides the tokens of :class:`Ask`."""
PIECE_BYTES: Final = 8 << 20
"""Most bytes of blocks that go with one message, but for a single block that is larger."""


class Introduce(msgspec.Struct, tag="introduce", frozen=True):
    """The first message of each side."""

    identity: BlockIdentity
    group_bytes: tuple[int, ...]
    """Bytes of a block, for each group of layers."""


class Verdict(msgspec.Struct, tag="verdict", frozen=True):
    """The second message of each side: why it does not take the other. Empty where it does."""

    refusal: str


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
    (``interface/blocks.py``) are the payload."""

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


FromDecode = Introduce | Verdict | Ask | Cancel
FromPrefill = Introduce | Verdict | Blocks | Ended | Beat
