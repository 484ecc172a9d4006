"""Blocks that somebody wants to stay make room after all others, for so long."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.stored_blocks import chain, fill, key, of_kind, same

from penstock.kvstore.kept_blocks import KeptBlocks
from penstock.kvstore.store import KvStore

LIMIT = 100 * 8192


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def others(store: KvStore, clock: Clock, count: int = 30) -> None:
    """Write and use other prefixes, later ones in the seconds that follow."""
    for _ in range(count):
        clock.now += 1
        store.write(chain(int(clock.now) * 1000, 5))


def test_they_outlast_what_comes_later(tmp_path: Path) -> None:
    clock = Clock()
    store = of_kind(tmp_path, LIMIT, now=clock)
    keys = [key(n) for n in range(5)]
    store.write(chain(0, 3))
    store.keep(keys, 300)
    store.write(chain(0, 5))  # some of it comes behind
    others(store, clock)
    assert store.stats.evicted > 100
    assert same(store, range(5))
    assert same(store, range(5), 1)
    store.check_integrity()
    store.close()
    # After a restart, too, and until their time is over.
    store = of_kind(tmp_path, LIMIT, now=clock)
    others(store, clock)
    assert same(store, range(5))
    clock.now = 1301.0
    others(store, clock)
    assert not store.holds(key(0), 0)
    store.close()


def test_one_that_is_asked_for_again_stays_longer(tmp_path: Path) -> None:
    clock = Clock()
    store = of_kind(tmp_path, LIMIT, now=clock)
    keys = [key(n) for n in range(5)]
    store.write(chain(0, 5))
    store.keep(keys, 300)
    clock.now += 200
    store.keep(keys, 300)
    store.keep(keys, 10)  # which takes nothing back
    clock.now += 200
    others(store, clock)
    assert same(store, range(5))
    store.close()


def test_they_take_no_more_than_their_share(tmp_path: Path) -> None:
    clock = Clock()
    store = of_kind(tmp_path, LIMIT, now=clock)
    for first in range(0, 1000, 100):
        store.keep([key(n) for n in range(first, first + 10)], 10_000)
        store.write(chain(first, 10))
    # 50 slots: the first two, and half of the third.
    assert same(store, range(10))
    assert same(store, range(100, 110), 1)
    others(store, clock)
    assert same(store, range(10))
    assert same(store, range(100, 110), 1)
    assert not store.holds(key(900), 0)
    fill(store, 10)
    assert len(store) > 50
    store.check_integrity()
    store.close()


def test_a_refusal_does_not_look_at_all_that_are_kept() -> None:
    """Every block of every prompt is refused while the share is taken."""
    compared = 0

    class Time(float):
        """Counts how often it is compared."""

        __hash__ = float.__hash__

        def __lt__(self, other: float) -> bool:
            nonlocal compared
            compared += 1
            return float(self) < other

        def __le__(self, other: float) -> bool:
            nonlocal compared
            compared += 1
            return float(self) <= other

        def __gt__(self, other: float) -> bool:
            nonlocal compared
            compared += 1
            return float(self) > other

    most = 1000
    kept = KeptBlocks(most)
    for number in range(most):
        assert kept.add(key(number), Time(1000.0 + number), 0.0)
    compared = 0
    assert not any(kept.add(key(most + number), Time(5000.0), 1.0) for number in range(most))
    assert compared < 10 * most
    # Each that is over makes room for another.
    assert kept.add(key(most), Time(5000.0), 1000.0)
    assert not kept.add(key(most + 1), Time(5000.0), 1000.0)
    assert kept.until(key(0)) == 0.0


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=60), st.integers(0, 8))
def test_times_are_the_longest_that_were_asked_for(asked: list[tuple[int, int]], most: int) -> None:
    kept, expected, now = KeptBlocks(most), dict[bytes, float](), 0.0
    for number, seconds in asked:
        now += 1
        name = bytes([number])
        if kept.add(name, now + seconds, now):
            expected[name] = max(expected.get(name, 0.0), now + seconds)
        else:
            # There is no room: so many others are kept still.
            assert sum(until > now for until in expected.values()) >= most
        assert len(kept) <= most
        for other, until in expected.items():
            if until > now:
                assert kept.until(other) == until
