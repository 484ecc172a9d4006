"""What is kept of a request: lengths, times, how it ended, and hashes of its beginning."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Final

from penstock.workload.prefix_hashes import HASH_BYTES

ENDPOINTS: Final = ("completions", "chat", "responses", "embeddings", "other")
ENDS: Final = ("stop", "length", "abort", "error")
"""Why requests end: the engine's finish reasons."""

_HEAD: Final = struct.Struct("<dffIIIIHBB")
HEAD_BYTES: Final = _HEAD.size


@dataclass(frozen=True, slots=True)
class Observation:
    """One request that has ended: no text, no token, no name of a user or tenant.

    Times are seconds; those that are not known are NaN.
    """

    arrived: float
    """Since the epoch."""
    first_token_s: float
    """Time from the arrival to the first token; of embeddings unknown."""
    duration_s: float
    """Time from the arrival to the end."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    output_tokens: int
    """Tokens of the longest sequence."""
    all_output_tokens: int
    """Tokens of all sequences."""
    sequences: int
    endpoint: int
    """Its place in ``ENDPOINTS``."""
    end: int
    """The place of its longest sequence's finish reason in ``ENDS``."""
    hashes: bytes = b""
    """Those of the full blocks of prompt and longest answer together, without the last token of the
    answer, which no cache holds (:mod:`~penstock.workload.prefix_hashes`)."""

    def packed(self) -> bytes:
        """All of it as one object, which takes a third of the memory."""
        return (
            _HEAD.pack(
                self.arrived,
                self.first_token_s,
                self.duration_s,
                self.prompt_tokens,
                self.cached_tokens,
                self.output_tokens,
                self.all_output_tokens,
                self.sequences,
                self.endpoint,
                self.end,
            )
            + self.hashes
        )


def blocks_of(record: bytes) -> int:
    """The number of hashes in what :meth:`Observation.packed` has returned."""
    return (len(record) - HEAD_BYTES) // HASH_BYTES


UNKNOWN: Final = math.nan
