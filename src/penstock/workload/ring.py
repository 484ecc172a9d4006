"""The newest requests of a server, in bounded memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from penstock.workload.observation import Observation, blocks_of

MAX_REQUESTS: Final = 100_000
MAX_BLOCKS: Final = 4_000_000
"""Blocks of 32 tokens whose hashes are kept: those of 100,000 requests of 1,280 tokens."""


@dataclass(frozen=True)
class Kept:
    """What a ring held at one moment."""

    records: tuple[bytes, ...]
    """Requests in the order of their ends (:meth:`Observation.packed`)."""
    forgotten: int
    """Requests that were observed before these and are not kept."""


class ObservationRing:
    """Keeps the newest requests, and drops the oldest as soon as there are more than
    ``max_requests``, or more than ``max_blocks`` hashes.

    A request takes 80 bytes and 8 for each block of 32 tokens of its prompt and answer; all of them
    take 41 MB at most. Belongs to one thread; what :meth:`kept` returns, to any.
    """

    def __init__(self, max_requests: int = MAX_REQUESTS, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_requests = max_requests
        self._max_blocks = max_blocks
        self._records: deque[bytes] = deque()
        self._blocks = 0
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, observation: Observation) -> None:
        record = observation.packed()
        self._records.append(record)
        self._blocks += blocks_of(record)
        while len(self._records) > self._max_requests or self._blocks > self._max_blocks:
            self._blocks -= blocks_of(self._records.popleft())
            self._forgotten += 1

    def kept(self) -> Kept:
        """What is kept now."""
        return Kept(tuple(self._records), self._forgotten)
