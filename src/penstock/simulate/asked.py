"""One request as the simulated engine sees it: its lengths, and the keys of its blocks.

A token's number matters to the books only through the keys by which blocks are found, so these are
made straight from the pieces of a prompt, and all tokens are 0. A block that ends ``n`` tokens into
a piece has what stands before the piece, and the first ``n`` tokens of it: blocks have equal keys
exactly where prompts are equal up to their end.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.bench.load.turn import Conversation, Piece, Turn
from penstock.cache.block_table import BlockTable
from penstock.errors import ConfigError
from penstock.interface.messages import Tenant
from penstock.sampling.params import SamplingParams
from penstock.scheduler.sequence import SequenceState

TOKEN: Final = 0
"""Every token of a simulation."""
_TEMPLATE, _ANSWER = 0xA11, 0xA12
"""First numbers of the keys of a chat template's tokens, and of answers."""
_NOBODY: Final = Tenant()
_NOTHING: Final[frozenset[int]] = frozenset()
_ROOT: Final = b"simulated"


class Asked(msgspec.Struct, gc=False):
    """A turn of a conversation that is due."""

    name: str
    conversation: int
    """Number of its conversation, in the order in which they begin."""
    turn: int
    pieces: tuple[Piece, ...]
    """The whole prompt."""
    prompt: int
    """Its tokens."""
    output: int
    scheduled_s: float
    sent_s: float
    """Seconds from the run's start."""
    pattern: str | None = None

    def sequence(self, params: SamplingParams, block_size: int | None) -> SequenceState:
        """The sequence to schedule; ``block_size`` None: nothing is looked for in the cache."""
        return self.sequence_with(params, [] if block_size is None else self.keys(block_size))

    def keys(self, block_size: int) -> list[bytes]:
        """The keys of all blocks of its prompt and its answer."""
        return block_keys(self._contents(), block_size)

    def sequence_with(self, params: SamplingParams, keys: list[bytes]) -> SequenceState:
        """The sequence to schedule, whose blocks have these keys."""
        table = BlockTable()
        table.keys = keys
        return SequenceState(
            request_id=self.name,
            index=0,
            token_ids=array("i", bytes(4 * self.prompt)),
            num_prompt_tokens=self.prompt,
            params=params,
            priority=0,
            tenant=_NOBODY,
            key=0,
            ending_token_ids=_NOTHING,
            eos_token_ids=_NOTHING,
            table=table,
            num_prompt_rows=self.prompt - 1,
            wants_prompt_rows=False,
        )

    def _contents(self) -> tuple[Piece, ...]:
        return (*self.pieces, answer(self.conversation, self.turn, self.output))


def answer(conversation: int, turn: int, tokens: int) -> Piece:
    """What a turn was answered."""
    return Piece((_ANSWER, conversation, turn), tokens)


def prompt_of(
    conversation: Conversation, turn: Turn, before: Sequence[Piece], template: int
) -> tuple[Piece, ...]:
    """The pieces of a turn's prompt, ``before`` being the conversation that it continues.

    ``template``: tokens that a chat template adds to every prompt; a turn that is ``whole`` has
    them in its lengths, and so much less of its text. Raises ConfigError for texts, whose tokens
    nobody has counted.
    """
    pieces: list[Piece] = list(before)
    if not pieces and template:
        pieces.append(Piece((_TEMPLATE,), template))
    left = max((turn.new_tokens or 0) - template, 1) if turn.whole else None
    for part in turn.content:
        if isinstance(part, str):
            raise ConfigError(
                f"conversation {conversation.name!r} has texts, whose tokens are not known; a "
                "simulation needs a trace, which has numbers of tokens"
            )
        if left is not None:
            part = Piece(part.key, min(part.tokens, left))
            left -= part.tokens
            if not part.tokens:
                break
        pieces.append(part)
    return tuple(pieces)


def block_keys(pieces: Sequence[Piece], block_size: int) -> list[bytes]:
    """The keys of the full blocks of these pieces, one after the other, each of 16 bytes."""
    keys: list[bytes] = []
    before, begin = _ROOT, 0
    for piece in pieces:
        own = blake2b(before + repr(piece.key).encode(), digest_size=12).digest()
        end = begin + piece.tokens
        first = len(keys) * block_size + block_size - begin
        keys += [
            own + place.to_bytes(4, "little")
            for place in range(first, piece.tokens + 1, block_size)
        ]
        before = own + piece.tokens.to_bytes(4, "little")
        begin = end
    return keys
