"""A scheduler whose sequences find blocks in stores of the test's own, on a clock of its own: no
model, no threads, and the bytes of a block are its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import pytest

from penstock.cache.geometry import BLOCK_SIZE, Window
from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import Key
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers import intake, prefix_search
from penstock.engine.tiers.block_store import Due, StoreFigures
from penstock.engine.tiers.restoring import Restoring
from penstock.engine.tiers.rule import ReadingCosts
from penstock.interface.blocks import (
    BlockBytes,
    BlockContent,
    BlockCopy,
    Bytes,
    DamagedBlockError,
)
from penstock.interface.messages import TierName
from penstock.kvstore.blocks import NewBlock
from penstock.kvstore.pieces import Piece, Wanted
from penstock.length_limits import LengthLimits
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState, make_sequences
from support.handed import request

NAME_BYTES: Final = 17
"""Bytes of a block: its key and its group."""
Answer = Literal["whole", "short", "damaged", "never"]
Name = tuple[Key, int]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def row_of(key: Key, group: int) -> Bytes:
    return np.frombuffer(key + bytes([group]), np.uint8)


class Memory:
    """A cache's memory that takes everything but what is damaged."""

    def __init__(self, groups: int) -> None:
        self.group_bytes = (NAME_BYTES,) * groups

    def read(self, group: int, blocks: Sequence[int]) -> BlockBytes:
        raise NotImplementedError

    def write(self, group: int, blocks: Sequence[int], content: BlockBytes) -> None:
        if content.checksums.any():
            raise DamagedBlockError("a block is not what its checksum says")


class CheckedBlocks(CachedBlocks):
    """Raises AssertionError where what is put is not what the keys name."""

    def put(self, keys: Sequence[Key], group: int, content: BlockContent) -> BlockCopy:
        assert isinstance(content, BlockBytes)
        rows = content.data.reshape(len(keys), -1)
        assert all((row == row_of(key, group)).all() for row, key in zip(rows, keys, strict=True))
        return super().put(keys, group, content)


@dataclass
class Reading:
    """A piece that a store was asked for."""

    piece: Piece
    due: float


@dataclass
class Store:
    """Has what it was given, and answers as ``answer`` says: how, and after how many seconds."""

    clock: Clock
    answer: Callable[[], tuple[Answer, float]]
    name: TierName = "disk"
    held: set[Name] = field(default_factory=set)
    reading: list[Reading] = field(default_factory=list)
    in_flight: dict[Name, int] = field(default_factory=dict)
    """The number for which each block is being read."""
    asked: list[tuple[int, Wanted]] = field(default_factory=list)
    """All that was ever asked for."""
    lent: int = 0
    """Pieces that have come and were not given back."""
    room: int = 0
    is_off: bool = False
    lasts: bool = True

    def holds(self, key: Key, group: int) -> bool:
        return (key, group) in self.held

    def read(self, number: int, pieces: Sequence[Wanted]) -> None:
        for wanted in pieces:
            self.asked.append((number, wanted))
            for key in wanted.keys:
                name = key, wanted.group
                assert name not in self.in_flight, "a block is read twice at once"
                self.in_flight[name] = number
            how, seconds = self.answer()
            count = len(wanted.keys) // 2 if how == "short" else len(wanted.keys)
            rows = [row_of(key, wanted.group) for key in wanted.keys[:count]]
            sums = np.zeros(count, np.uint32)
            if how == "damaged":
                sums[-1:] = 1
            data = np.concatenate(rows) if rows else np.empty(0, np.uint8)
            piece = Piece(number, wanted, count, BlockBytes(data, sums), seconds, 1e-6)
            due = float("inf") if how == "never" else self.clock.now + seconds
            self.reading.append(Reading(piece, due))

    def arrived(self) -> list[Piece]:
        come = [each for each in self.reading if each.due <= self.clock.now]
        come.sort(key=lambda each: each.due)
        self.reading = [each for each in self.reading if each.due > self.clock.now]
        for each in come:
            self._land(each.piece)
        self.lent += len(come)
        return [each.piece for each in come]

    def _land(self, piece: Piece) -> None:
        for key in piece.wanted.keys:
            if self.in_flight.get((key, piece.wanted.group)) == piece.number:
                del self.in_flight[key, piece.wanted.group]

    def done(self, piece: Piece, seconds: float = 0.0) -> None:
        self.lent -= 1

    def cancel(self, number: int) -> None:
        """What is read already comes all the same, but nobody waits for it."""
        self.in_flight = {name: n for name, n in self.in_flight.items() if n != number}
        self.reading = [
            each for each in self.reading if each.piece.number != number or each.due < float("inf")
        ]

    def drop(self, keys: Sequence[Key], group: int) -> None:
        self.held -= {(key, group) for key in keys}

    def use(self, keys: Sequence[Key], group: int) -> None: ...
    def keep(self, keys: Sequence[Key], seconds: float) -> None: ...
    def reserve(self, due: Sequence[Due], group: int) -> None: ...
    def release(self, due: Sequence[Due], group: int) -> None: ...
    def write(self, blocks: Sequence[NewBlock]) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def clear(self) -> None: ...
    def close(self, seconds: float) -> None: ...

    @property
    def has_arrived(self) -> bool:
        return any(each.due <= self.clock.now for each in self.reading)

    def stats(self) -> StoreFigures:
        raise NotImplementedError


def at_once() -> tuple[Answer, float]:
    return "whole", 0.0


class Engine:
    """Requests of one token of output, which are let in as the scheduler lets them."""

    def __init__(
        self,
        answers: Sequence[Callable[[], tuple[Answer, float]]] = (at_once,),
        num_blocks: int = 200,
        seqs: int = 4,
        windows: tuple[Window | None, ...] = (None,),
        token_s: float = 0.01,
        context: int = 20_000,
    ) -> None:
        """``answers``: of each store, the fastest first; ``token_s``: what computing a token is
        taken to cost."""
        self.clock = Clock()
        self.cache = KvCache(num_blocks, BLOCK_SIZE, windows=windows)
        names: tuple[TierName, ...] = ("host", "disk")
        self.stores = [
            Store(self.clock, answer, name)
            for answer, name in zip(answers, names[-len(answers) :], strict=True)
        ]
        self.costs = ReadingCosts(len(self.stores))
        self.costs.rate.add(1.0, token_s)
        blocks = CheckedBlocks(self.cache, Memory(len(windows)))
        self.restoring = Restoring(
            self.cache, blocks, self.stores, self.costs, self.clock, self.clock
        )
        self.scheduler = Scheduler(
            self.cache, seqs, context, LengthLimits(context), gate=self.restoring
        )
        self.sequences: list[SequenceState] = []

    def hold(self, store: int, tokens: Sequence[int], salt: str = "") -> None:
        """Let a store have the whole blocks of a prompt, in all groups."""
        sequence = make_sequences(request("held", tokens, salt), 0)
        count = len(tokens) // BLOCK_SIZE
        keys = self.cache.keys(sequence.table, sequence.token_ids, count)
        groups = range(len(self.cache.windows))
        self.stores[store].held |= {(key, group) for key in keys for group in groups}

    def add(self, tokens: Sequence[int], priority: int = 0, output: int = 1) -> SequenceState:
        asked = request(f"{len(self.sequences)}", tokens, max_tokens=output)
        sequence = make_sequences(asked, 0)
        sequence.priority = priority
        self.sequences.append(sequence)
        self.scheduler.add(sequence)
        self.restoring.expect(sequence)
        return sequence

    def step(self, seconds: float) -> list[SequenceState]:
        """Move blocks, run a step, if any can run, and let so much time pass; returns what ran."""
        for sequence in self.restoring.advance(len(self.scheduler.running)):
            self.scheduler.put_back(sequence)
        step = self.scheduler.schedule()
        self.clock.now += seconds
        ran = []
        if step is not None:
            ran = [each.sequence for each in step.sequences]
            self.scheduler.update(step, [[1]] * len(step.samples))
        self.restoring.stepped(seconds)
        self.scheduler.check_integrity()
        return ran


@contextmanager
def small_pieces() -> Iterator[None]:
    """Pieces have two blocks, and four of these are read at once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prefix_search, "PIECE_BYTES", 2 * NAME_BYTES)
        patched.setattr(intake, "AHEAD_BYTES", 8 * NAME_BYTES)
        patched.setattr(intake, "STAGED_BYTES", 64 * NAME_BYTES)
        yield
