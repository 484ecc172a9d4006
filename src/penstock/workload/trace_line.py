"""A line of a trace of requests: Mooncake's fields, and more that say what was observed."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

MOONCAKE_BLOCK: Final = 512
"""Prompt tokens that one hash id stands for where a line names no other number."""

MOST_TOKENS: Final = 10**8
"""The longest prompt or answer of a trace: ten times the longest context that models have. Sums of
millions of them are exact."""
MOST_SECONDS: Final = 1e12
"""The latest time of a trace: times since the epoch are traces' times, too."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS * 1e3)]


class TraceLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request of a trace (``.jsonl``).

    The first four fields are those of Mooncake's traces. With ``session_id`` a line belongs to a
    conversation: lines of one follow each other, unless ``after`` says which lines (by ``id``) must
    have been answered. The fields from ``block_size`` on are those of observed workloads; a replay
    reads of them ``block_size`` alone.
    """

    input_length: Count
    """Tokens of the prompt."""
    output_length: Count
    """Tokens of the answer; of several answers to one prompt, those of the longest."""
    timestamp: _Milliseconds | None = None
    """Milliseconds from the trace's beginning to the request's arrival."""
    hash_ids: list[int] | None = None
    """One number for each block of prompt tokens, the last of which may not be full. Equal numbers
    stand for equal blocks behind equal blocks: prompts share a prefix as far as they are equal."""
    session_id: str | int | None = None
    delay: _Milliseconds = 0.0
    """Milliseconds between the answers that a turn follows and the turn."""
    id: str | int | None = None
    after: list[str | int] | None = None

    block_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)] = MOONCAKE_BLOCK
    """Tokens that each of ``hash_ids`` stands for."""
    answer_ids: list[int] | None = None
    """Numbers of the blocks that the answer fills, in continuation of the prompt's full ones, by
    which a later prompt that repeats the answer is known."""
    cached_tokens: Count | None = None
    """Prompt tokens that the server found in its prefix cache."""
    first_token_ms: _Milliseconds | None = None
    """Milliseconds from the arrival to the first token."""
    duration_ms: _Milliseconds | None = None
    """Milliseconds from the arrival to the end."""
    endpoint: str | None = None
    """What was asked: ``completions``, ``chat``, ``responses``, ``embeddings``."""
    finish_reason: str | None = None
    """``stop``, ``length``, ``abort`` (its client left, or it was ended) or ``error``."""
    sequences: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)] = 1
    """Answers to the prompt that were asked for."""
