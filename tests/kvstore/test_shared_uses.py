"""What one engine asks for, or asks to stay, the others that share the directory know of."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stored_blocks import chain, key, of_kind, opened, same

from penstock.kvstore.clock import SteadyClock
from penstock.kvstore.kept_blocks import MOST_KEPT_S
from penstock.kvstore.segment import Segment
from penstock.kvstore.store import KvStore

LIMIT = 100 * 8192


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Pair:
    """Two engines with one directory."""

    def __init__(self, root: Path) -> None:
        self.clock = Clock()
        self.one, self.other = (of_kind(root, LIMIT, now=self.clock) for _ in range(2))
        self._next = 1000

    def refresh(self) -> None:
        for store in (self.one, self.other):
            store.refresh()

    def others(self, store: KvStore, count: int) -> None:
        """Have a store write prefixes of five blocks, a second apart."""
        for _ in range(count):
            self.clock.now += 1
            self._next += 1000
            store.write(chain(self._next, 5))

    def close(self) -> None:
        for store in (self.one, self.other):
            store.check_integrity()
            store.close()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def keys(first: int, count: int = 5) -> list[bytes]:
    return [key(n) for n in range(first, first + count)]


def test_a_use_is_known_to_the_other(pair: Pair) -> None:
    pair.one.write(chain(0, 5))
    pair.one.write(chain(100, 5))
    pair.others(pair.one, 5)
    pair.refresh()
    for group in range(2):
        pair.other.use(keys(0), group)
    pair.other.refresh()
    pair.one.refresh()
    while pair.one.holds(key(100), 0):
        pair.others(pair.one, 1)
    assert same(pair.one, range(5))
    assert same(pair.one, range(5), 1)
    pair.close()


def test_what_was_used_again_is_known_to_be(pair: Pair) -> None:
    """It ages half as fast as what was used once, in both engines."""
    pair.one.write(chain(0, 5))
    pair.one.write(chain(100, 5))
    pair.refresh()
    pair.clock.now += 1
    for group in range(2):
        pair.other.use(keys(0), group)
    pair.other.refresh()
    pair.one.refresh()
    pair.clock.now += 10
    pair.one.write(chain(200, 5))
    pair.clock.now += 12  # 22 s for what was used again, and twice 12 s for what was used once
    victims = pair.one.index.victims(20, pair.clock.now, ())
    names = [pair.one.index.name_at(place) for place in victims]
    assert {name[:16] for name in names if name} == {*keys(100), *keys(200)}
    pair.close()


def test_a_block_that_is_to_stay_stays_in_the_other_engine_too(pair: Pair) -> None:
    pair.one.write(chain(0, 5))
    pair.refresh()
    pair.one.keep(keys(0), 300)
    pair.one.refresh()
    pair.other.refresh()
    pair.others(pair.other, 40)
    assert pair.other.stats.evicted > 100
    pair.refresh()
    assert same(pair.other, range(5))
    assert same(pair.one, range(5), 1)
    pair.clock.now = 1301.0
    pair.others(pair.other, 40)
    assert not pair.other.holds(key(0), 0)
    pair.close()


def test_a_block_that_the_other_engine_writes_stays_as_was_asked_here(pair: Pair) -> None:
    pair.one.keep(keys(0), 300)
    pair.other.write(chain(0, 5))
    for _ in range(2):  # one sees it and notes until when, which the other sees
        pair.refresh()
    pair.others(pair.other, 40)
    pair.refresh()
    assert same(pair.one, range(5))
    pair.others(pair.one, 40)
    assert same(pair.one, range(5))
    pair.close()


def test_what_others_keep_is_of_the_same_share(pair: Pair) -> None:
    """Half of the slots are kept at most, whoever asked and after a restart."""
    for first in range(0, 900, 100):
        pair.one.write(chain(first, 5))
    pair.refresh()
    for first in range(0, 400, 100):
        pair.one.keep(keys(first), 10_000)
    for first in range(400, 900, 100):
        pair.other.keep(keys(first), 10_000)
    pair.refresh()
    pair.refresh()
    pair.others(pair.one, 40)
    kept = {(n, g) for n in range(900) for g in range(2) if pair.one.holds(key(n), g)}
    asked = [*range(0, 5), *range(100, 105), *range(200, 205), *range(300, 305)]
    assert kept > {(n, g) for n in asked for g in range(2)}
    assert len(kept) == 50
    assert all(n % 100 < 3 for n, _ in kept - {(n, g) for n in asked for g in range(2)})
    pair.close()


def test_nothing_is_read_where_nothing_was_noted(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.one.write(chain(0, 5))
    pair.refresh()
    pair.refresh()
    read = Segment.uses
    looks = 0

    def counted(self: Segment) -> object:
        nonlocal looks
        looks += 1
        return read(self)

    monkeypatch.setattr(Segment, "uses", counted)
    pair.refresh()
    assert looks == 0
    pair.one.use(keys(0), 0)
    pair.refresh()
    assert looks == 1  # by the other one
    pair.close()


def test_uses_are_not_lost_where_two_note_them_at_once(tmp_path: Path) -> None:
    """Each leaves alone what it knows nothing of."""
    clock = Clock()
    one, other = (opened(tmp_path, LIMIT, now=clock) for _ in range(2))
    one.write(chain(0, 10))
    for store in (one, other):
        store.refresh()
    place = one.index.places([keys(3, 1)[0] + b"\0\0", keys(7, 1)[0] + b"\0\0"])
    segment = place[0].segment
    before = segment.uses()  # what one of them has read when the other writes
    other.use(keys(7, 1), 0)
    other.refresh()
    before["second"][place[0].slot] = 5000
    segment.put_uses([place[0].slot], before)
    assert segment.uses()["count"][place[1].slot] == 1
    assert segment.uses()["second"][place[0].slot] == 5000
    for store in (one, other):
        store.close()


def test_a_clock_that_is_set_back_goes_on() -> None:
    wall, elapsed = 1000.0, 50.0
    clock = SteadyClock(lambda: wall, lambda: elapsed)
    assert clock() == 1000.0
    wall, elapsed = 1010.0, 60.0
    assert clock() == 1010.0
    wall, elapsed = 400.0, 65.0  # set back by 615 s
    assert clock() == 1015.0
    wall, elapsed = 410.0, 75.0
    assert clock() == 1025.0
    wall, elapsed = 5000.0, 76.0  # set right
    assert clock() == 5000.0


def test_uses_in_a_future_that_was_none_hold_nothing_back(tmp_path: Path) -> None:
    """Those of a clock that was a year ahead, before the engine was started again."""
    clock = Clock()
    clock.now = 1000.0 + 365 * MOST_KEPT_S
    store = of_kind(tmp_path, LIMIT, now=clock)
    for first in range(0, 1000, 100):
        store.write(chain(first, 5))
    store.close()
    clock.now = 1000.0
    store = of_kind(tmp_path, LIMIT, now=clock)
    for first in range(1000, 2000, 100):
        clock.now += 1
        store.write(chain(first, 5))
    assert all(same(store, range(first, first + 5)) for first in range(1500, 2000, 100))
    assert not store.holds(key(0), 0)
    store.close()
