"""Blocks in the host's memory: what is found is what was copied there, whatever makes room."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.stored_blocks import CHAIN, SIZES, block, key

from penstock.engine.tiers import host_blocks
from penstock.engine.tiers.block_store import Due
from penstock.engine.tiers.host_blocks import HostBlocks, allocated
from penstock.interface.blocks import BlockRows
from penstock.kvstore.pieces import Piece, Wanted

SLOTS = 12


def memory(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.full(size, 0xA5, np.uint8)


def store_of(slots: int = SLOTS, **options: Any) -> HostBlocks:
    pieces = allocated(slots * max(SIZES), max(SIZES), memory)
    return HostBlocks(pieces, SIZES, **options)


def due(number: int) -> Due:
    parent = key(number - 1) if number % CHAIN else bytes(16)
    return Due(parent, number, key(number))


def save(store: HostBlocks, numbers: list[int], group: int = 0) -> int:
    """Put blocks into the store, as far as there is room; returns how many."""
    wanted = [due(n) for n in numbers if not store.holds(key(n), group)]
    rows = store.reserve(wanted, group)
    numbers = [each.place for each in wanted[: len(rows)]]
    for number, row in zip(numbers, rows, strict=True):
        row[:] = block(number, group).data
    store.write(
        [block(number, group)._replace(data=row) for number, row in zip(numbers, rows, strict=True)]
    )
    return len(rows)


def lent(store: HostBlocks, numbers: list[int], group: int = 0) -> Piece:
    """What is read at once."""
    wanted = Wanted(group, tuple(numbers), tuple(map(key, numbers)))
    store.read(1, [wanted])
    (piece,) = store.arrived()
    return piece


def check(piece: Piece) -> None:
    """Whether the bytes are those of the blocks."""
    assert isinstance(piece.content, BlockRows)
    assert len(piece.content.rows) == piece.found
    for number, row in zip(piece.wanted.places, piece.content.rows, strict=False):
        np.testing.assert_array_equal(row, block(number, piece.wanted.group).data)


def found(store: HostBlocks, numbers: range, group: int = 0) -> list[int]:
    return [number for number in numbers if store.holds(key(number), group)]


NUMBERS = st.lists(st.integers(0, 39), min_size=1, max_size=8, unique=True)
GROUPS = st.integers(0, len(SIZES) - 1)


class Machine(RuleBasedStateMachine):
    """Copies that come late, or never; pieces that stay for long; all in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store = store_of(windowed=[1], now=lambda: self.now)
        self.coming: list[tuple[int, list[Due], Any]] = []
        self.lent: list[Piece] = []

    @rule(numbers=NUMBERS, group=GROUPS)
    def reserve(self, numbers: list[int], group: int) -> None:
        self.now += 1
        on_way = {(each.key, g) for g, dues, _ in self.coming for each in dues}
        wanted = [
            due(n)
            for n in sorted(numbers)
            if not self.store.holds(key(n), group) and (key(n), group) not in on_way
        ]
        room, before = self.store.room, len(self.store)
        rows = self.store.reserve(wanted, group)
        assert len(rows) <= min(len(wanted), room // max(SIZES))
        assert len(self.store) >= before - len(wanted)
        self.coming.append((group, wanted[: len(rows)], rows))

    @precondition(lambda self: self.coming)
    @rule(data=st.data(), given_up=st.booleans())
    def come(self, data: st.DataObject, given_up: bool) -> None:
        """What was reserved comes, or does not."""
        self.now += 1
        at = data.draw(st.integers(0, len(self.coming) - 1))
        group, dues, rows = self.coming.pop(at)
        for each, row in zip(dues, rows, strict=True):
            row[:] = block(each.place, group).data
        if given_up:
            self.store.release(dues, group)
            return
        self.store.write(
            [
                block(each.place, group)._replace(data=row)
                for each, row in zip(dues, rows, strict=True)
            ]
        )
        assert all(self.store.holds(each.key, group) for each in dues)

    @rule(numbers=NUMBERS, group=GROUPS)
    def read(self, numbers: list[int], group: int) -> None:
        there = [self.store.holds(key(n), group) for n in numbers]
        piece = lent(self.store, numbers, group)
        assert piece.found == (there.index(False) if False in there else len(there))
        self.lent.append(piece)

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        piece = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        check(piece)
        self.store.done(piece)

    @rule(numbers=NUMBERS, group=GROUPS)
    def use(self, numbers: list[int], group: int) -> None:
        self.now += 1
        self.store.use([key(n) for n in numbers], group)

    @rule(numbers=NUMBERS, seconds=st.floats(0, 20))
    def keep(self, numbers: list[int], seconds: float) -> None:
        self.store.keep([key(n) for n in numbers], seconds)

    @rule(numbers=NUMBERS, group=GROUPS)
    def drop(self, numbers: list[int], group: int) -> None:
        self.store.drop([key(n) for n in numbers], group)
        assert not any(self.store.holds(key(n), group) for n in numbers)

    @rule()
    def clear(self) -> None:
        self.store.clear()
        assert len(self.store) == 0

    @invariant()
    def sound(self) -> None:
        self.store.check_integrity()
        for piece in self.lent:  # nothing has taken its place
            check(piece)


def test_whatever_happens() -> None:
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )


def test_the_end_of_the_chain_makes_room_that_was_used_least_recently() -> None:
    clock = [0.0]
    store = store_of(now=lambda: clock[0])
    for at, first in enumerate((0, 10, 20)):
        clock[0] = float(at)
        assert save(store, list(range(first, first + 4))) == 4
    clock[0] = 3.0
    store.use([key(n) for n in range(4)], 0)
    assert save(store, [30, 31, 32]) == 3
    assert found(store, range(40)) == [0, 1, 2, 3, 10, 20, 21, 22, 23, 30, 31, 32]
    assert store.stats().evicted == 3


def test_of_a_chain_that_is_too_long_the_beginning_is_kept() -> None:
    store = store_of(4)
    assert save(store, [0, 1, 2]) == 3
    assert save(store, [3, 4, 5]) == 1
    assert save(store, [4, 5, 6]) == 0
    assert found(store, range(10)) == [0, 1, 2, 3]


def test_blocks_that_are_lent_stay() -> None:
    store = store_of(3)
    save(store, [0, 10, 20])
    piece = lent(store, [0])
    assert store.room == 2 * max(SIZES)
    assert save(store, [33, 35, 37]) == 2  # whose chains have no beginnings there
    assert store.holds(key(0), 0)
    store.clear()
    assert save(store, [5, 15, 25]) == 2
    check(piece)
    store.done(piece)
    store.check_integrity()
    assert save(store, [26]) == 1


def test_what_is_kept_makes_room_last() -> None:
    clock = [0.0]
    store = store_of(6, now=lambda: clock[0])
    store.keep([key(0)], 100.0)  # before it comes
    save(store, [0, 10, 20, 30])
    store.keep([key(10)], 100.0)
    clock[0] = 1.0
    save(store, [1, 11, 21, 31])
    assert {0, 10} <= set(found(store, range(40)))


def test_memory_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_blocks, "PIECE_BYTES", 3 * max(SIZES) + 7)
    store = store_of(8)
    assert [len(piece) for piece in store._memory] == [
        3 * max(SIZES),
        3 * max(SIZES),
        2 * max(SIZES),
    ]
    assert save(store, list(range(8))) == 8
    check(lent(store, list(range(8))))
