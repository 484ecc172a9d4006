"""Blocks come beside others' steps at a pace that these hardly notice, on a clock of the test's
own; and no sequence waits longer than it would take to compute them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.handed import request

from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import Key
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.block_store import Due, StoreFigures
from penstock.engine.tiers.pacing import SHARE, Pace
from penstock.engine.tiers.restoring import Restoring
from penstock.engine.tiers.rule import ReadingCosts
from penstock.interface.blocks import BlockBytes
from penstock.interface.messages import TierName
from penstock.kvstore.blocks import NewBlock
from penstock.kvstore.pieces import Piece, Wanted
from penstock.scheduler.sequence import SequenceState, Status, make_sequences

BLOCK_BYTES = 1 << 20
ZEROS = np.zeros(64 * BLOCK_BYTES, np.uint8)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Memory:
    """A cache whose blocks take a time to write."""

    clock: Clock
    block_s: float
    put_s: float = 0.0
    """Seconds that writing took so far."""
    group_bytes: tuple[int, ...] = (BLOCK_BYTES,)

    def read(self, group: int, blocks: Sequence[int]) -> BlockBytes:
        raise NotImplementedError

    def write(self, group: int, blocks: Sequence[int], content: BlockBytes) -> None:
        self.clock.now += self.block_s * len(blocks)
        self.put_s += self.block_s * len(blocks)


@dataclass
class Disk:
    """A disk that has everything that is looked for, and reads one block after the other."""

    clock: Clock
    block_s: float
    busy_until: float = 0.0
    coming: list[tuple[float, Piece]] = field(default_factory=list)
    unreturned: int = 0
    """Pieces that came and were not given back."""
    room: int = 0
    has_arrived: bool = False
    is_off: bool = False
    lasts: bool = True
    name: TierName = "disk"

    def read(self, number: int, pieces: Sequence[Wanted]) -> None:
        for wanted in pieces:
            count = len(wanted.keys)
            seconds = self.block_s * count
            self.busy_until = max(self.busy_until, self.clock.now) + seconds
            content = BlockBytes(ZEROS[: count * BLOCK_BYTES], np.zeros(count, np.uint32))
            piece = Piece(number, wanted, count, content, seconds, seconds / 4)
            self.coming.append((self.busy_until, piece))

    def arrived(self) -> list[Piece]:
        come = [piece for at, piece in self.coming if at <= self.clock.now]
        self.coming = [each for each in self.coming if each[0] > self.clock.now]
        self.unreturned += len(come)
        return come

    def done(self, piece: Piece, seconds: float = 0.0) -> None:
        self.unreturned -= 1

    def cancel(self, number: int) -> None:
        self.coming = [each for each in self.coming if each[1].number != number]

    def holds(self, key: Key, group: int) -> bool:
        return True

    def use(self, keys: Sequence[Key], group: int) -> None: ...
    def keep(self, keys: Sequence[Key], seconds: float) -> None: ...
    def reserve(self, due: Sequence[Due], group: int) -> None: ...
    def release(self, due: Sequence[Due], group: int) -> None: ...
    def write(self, blocks: Sequence[NewBlock]) -> None: ...
    def drop(self, keys: Sequence[Key], group: int) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def clear(self) -> None: ...
    def close(self, seconds: float) -> None: ...

    def stats(self) -> StoreFigures:
        raise NotImplementedError


class Engine:
    """The loop of an engine, as far as blocks on disk are concerned: sequences wait in a line, and
    start when they are ready. Others run beside."""

    def __init__(self, read_s: float, put_s: float, token_s: float, num_blocks: int = 2000) -> None:
        self.clock = Clock()
        self.memory = Memory(self.clock, put_s)
        self.disk = Disk(self.clock, read_s)
        self.cache = KvCache(num_blocks, BLOCK_SIZE)
        self.costs = ReadingCosts()
        self.costs.rate.add(1.0, token_s)
        blocks = CachedBlocks(self.cache, self.memory)
        self.restoring = Restoring(
            self.cache, blocks, [self.disk], self.costs, self.clock, self.clock
        )
        self.waiting: list[SequenceState] = []
        self.aside: list[SequenceState] = []
        self.turn_at: dict[SequenceState, float] = {}
        self.started_at: dict[SequenceState, float] = {}
        self.count = 0

    def add(self, num_blocks: int) -> SequenceState:
        self.count += 1
        tokens = [self.count, *range(num_blocks * BLOCK_SIZE)]
        sequence = make_sequences(request(f"{self.count}", tokens), 0)
        self.waiting.append(sequence)
        self.restoring.expect(sequence)
        return sequence

    def step(self, seconds: float, running: int) -> float:
        """A gap between steps, and a step; returns the seconds that blocks took of both."""
        before = self.memory.put_s
        for sequence in self.restoring.advance(running):
            self.aside.remove(sequence)
            self.waiting.insert(0, sequence)
        for sequence in tuple(self.waiting):
            self.turn_at.setdefault(sequence, self.clock.now)
            if self.restoring.ready(sequence, running):
                sequence.status = Status.RUNNING
                self.started_at[sequence] = self.clock.now
            else:
                self.aside.append(sequence)
            self.waiting.remove(sequence)
        self.clock.now += seconds
        self.restoring.stepped(seconds)
        return self.memory.put_s - before


RATES = {"read_s": st.floats(1e-4, 1e-2), "put_s": st.floats(1e-4, 5e-3)}
STEP_S = st.floats(1e-3, 0.3)


@given(steps=st.lists(st.tuples(STEP_S, st.lists(st.floats(1e-5, 0.05), max_size=6))))
def test_a_pace_is_a_share_of_the_steps(steps: list[tuple[float, list[float]]]) -> None:
    pace, spent, earned, most = Pace(), 0.0, 0.0, 0.0
    for seconds, wanted in steps:
        pace.earn(seconds)
        earned += SHARE * seconds
        for cost in wanted:
            if pace.may_go:
                pace.spend(cost)
                spent += cost
                most = max(most, cost)
        assert spent <= earned + most + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    step_s=STEP_S,
    running=st.integers(1, 5),
    **RATES,
)
def test_others_steps_come_first_at_first(
    lengths: list[int], step_s: float, running: int, read_s: float, put_s: float
) -> None:
    """Until somebody has waited for a part of the time of computing."""
    engine = Engine(read_s, put_s, token_s=1.0)
    calm = engine.costs.calm_s(BLOCK_SIZE)  # of a block, the least
    for length in lengths:
        engine.add(length)
    piece_s, taken, steps = 8 * put_s, 0.0, 0
    while engine.clock.now < calm and len(engine.started_at) < len(lengths):
        taken += engine.step(step_s, running)
        steps += 1
        assert taken <= SHARE * step_s * steps + piece_s + 1e-9
    engine.restoring.reset()


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    steps=st.lists(st.tuples(STEP_S, st.integers(0, 5)), min_size=1, max_size=20),
    token_s=st.floats(1e-5, 1e-2),
    **RATES,
)
def test_nobody_waits_longer_than_computing_would_take(
    lengths: list[int],
    steps: list[tuple[float, int]],
    token_s: float,
    read_s: float,
    put_s: float,
) -> None:
    engine = Engine(read_s, put_s, token_s)
    sequences = [engine.add(length) for length in lengths]
    number = 0
    while len(engine.started_at) < len(sequences):
        step_s, running = steps[number % len(steps)]
        engine.step(step_s, running)
        number += 1
        assert number < 100_000, "a sequence never starts"
    longest = max(step_s for step_s, _ in steps)
    for sequence, length in zip(sequences, lengths, strict=True):
        patience = engine.costs.patience_s(length * BLOCK_SIZE)
        waited = engine.started_at[sequence] - engine.turn_at[sequence]
        assert waited <= patience + 2 * longest + engine.memory.put_s
    engine.step(longest, 0)
    engine.disk.busy_until = engine.clock.now = engine.clock.now + 1e6
    engine.step(longest, 0)
    assert engine.disk.unreturned == 0
    assert not engine.restoring.has_work


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 200), **RATES)
def test_what_comes_while_nothing_runs_is_put_at_once(
    length: int, read_s: float, put_s: float
) -> None:
    engine = Engine(read_s, put_s, token_s=1.0)
    sequence = engine.add(length)
    wait_s = read_s / 2
    while sequence not in engine.started_at:
        engine.step(wait_s, 0)
    # The disk never waits for what is put, nor that for the disk's next block.
    slower = max(read_s, put_s) * length
    assert engine.clock.now <= slower + 16 * (read_s + put_s) + 3 * wait_s
    prefix = engine.cache.lookup(sequence.table, sequence.token_ids, len(sequence.token_ids) - 1)
    assert prefix.num_tokens == length * BLOCK_SIZE


def test_what_was_done_while_nothing_ran_is_no_debt_of_later_steps() -> None:
    engine = Engine(1e-3, 1e-3, token_s=1.0)
    first = engine.add(200)
    while first not in engine.started_at:
        engine.step(1e-3, 0)
    second = engine.add(30)
    for _ in range(4):
        engine.step(0.05, 1)
    assert engine.memory.put_s > 0.2, "nothing was put beside the steps"
    engine.restoring.reset()
    assert second not in engine.started_at


def test_a_sequence_that_has_no_room_beside_others_waits_in_line() -> None:
    """Not aside, where nothing would bring it back."""
    engine = Engine(1e-3, 1e-3, token_s=1.0, num_blocks=20)
    sequence = engine.add(30)
    for _ in range(200):
        engine.step(0.05, 1)
    assert sequence in engine.started_at  # or, in an engine, it waits until others end


@pytest.mark.parametrize("kept", [0, 8])
def test_what_is_lost_while_it_waits_for_room_is_read_again(kept: int) -> None:
    """Patience is for the disk: others' blocks, which are waited for, may take much longer."""
    engine = Engine(1e-3, 1e-3, token_s=1e-2, num_blocks=20)
    restoring = engine.restoring
    sequence = engine.add(10)
    assert not restoring.ready(sequence, 0)
    come_again(engine, sequence)
    prefix = engine.cache.lookup(sequence.table, sequence.token_ids, 320)
    assert prefix.num_tokens == 320

    other = make_sequences(request("other", range(1000, 1000 + (20 - kept) * BLOCK_SIZE)), 0)
    tokens = len(other.token_ids)
    assert engine.cache.begin(other.table, None, tokens, tokens)
    assert restoring.ready(sequence, 0)  # as far as the disk is concerned
    engine.clock.now += 1000.0
    engine.cache.free(other.table)

    assert not restoring.ready(sequence, 0)
    come_again(engine, sequence)
    assert restoring.ready(sequence, 0)
    prefix = engine.cache.lookup(sequence.table, sequence.token_ids, 320)
    assert prefix.num_tokens == 320
    assert restoring.given_up == [0]


def come_again(engine: Engine, sequence: SequenceState) -> None:
    """Step until the blocks of a sequence have come that was set aside."""
    for _ in range(100):
        if sequence in engine.restoring.advance(0):
            return
        engine.clock.now += 1e-3
    raise AssertionError("it never comes again")
