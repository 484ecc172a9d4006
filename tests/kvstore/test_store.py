"""Blocks on disk are found again, are what they were, and make room for others."""

from __future__ import annotations

import itertools
from pathlib import Path

from support.stored_blocks import DIGEST, SIZES, block, fill, key, opened, same

from penstock.cache.retention import Lru
from penstock.kvstore.folder import StoreFolder
from penstock.kvstore.store import KvStore


def test_blocks_are_found_by_their_keys_and_groups(tmp_path: Path) -> None:
    store = opened(tmp_path / "kv")
    assert store.write([block(n) for n in range(10)]) == 10
    assert store.write([block(n, 1) for n in range(3)]) == 3
    assert same(store, range(10))
    assert same(store, [7, 3, 5])
    assert same(store, range(3), 1)
    assert store.holds(key(9), 0)
    assert not store.holds(key(77), 0)
    assert not store.holds(key(5), 1)
    store.check_integrity()
    store.close()


def test_a_store_that_is_opened_again_has_what_it_had(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write([block(n) for n in range(30)])
    store.close()
    again = opened(tmp_path)
    assert len(again) == 30
    assert same(again, range(30))
    again.check_integrity()
    again.close()


def test_blocks_of_another_kind_are_not_found(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path, digest=bytes(16))
    one.write([block(1)])
    other.refresh()
    assert not other.holds(key(1), 0)
    # Nor are those of blocks of another size, if a digest should ever stand for both.
    third = opened(tmp_path, sizes=(50_000,))
    assert len(third) == 0
    for store in (one, other, third):
        store.close()


def test_two_processes_find_each_others_blocks(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    one.write([block(1), block(2)])
    other.refresh()
    assert same(other, [1, 2])
    other.write([block(3)])
    one.refresh()
    assert same(one, [1, 2, 3])
    one.empty(one.drop([key(2)], 0))
    assert not same(other, [2])  # noticed as it is read
    other.refresh()
    assert not other.holds(key(2), 0)
    for store in (one, other):
        store.check_integrity()
        store.close()


def test_least_recently_used_blocks_make_room(tmp_path: Path) -> None:
    store = opened(tmp_path, 40 * 8192)
    fill(store, 200)
    held = [n for n in range(200) if store.holds(key(n), 0)]
    store.use([key(n) for n in held[:5]], 0)
    store.write([block(n) for n in range(200, 200 + len(held) - 5)])
    assert same(store, held[:5])
    assert not any(store.holds(key(n), 0) for n in held[5:])
    store.close()


def test_uses_are_known_after_a_restart(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path, DIGEST, b"{}", 40 * 8192)
    store = KvStore(folder, SIZES, 40 * 8192, Lru(), now=lambda: 1000.0)
    fill(store, 200)
    held = [n for n in range(200) if store.holds(key(n), 0)]
    store.use([key(n) for n in held[:5]], 0)
    store.close()
    store = opened(tmp_path, 40 * 8192)
    store.write([block(n) for n in range(200, 200 + len(held) - 5)])
    assert same(store, held[:5])
    store.close()


def test_what_was_used_once_makes_room_first_after_a_restart_as_well(tmp_path: Path) -> None:
    """Though it was used later than what was used again; each block is a chain."""
    limit, now = 40 * 8192, 1000.0
    folder = StoreFolder(tmp_path, DIGEST, b"{}", limit)
    store = KvStore(folder, SIZES, limit, Lru(), now=lambda: now)
    store.write([block(0)])
    store.use([key(0)], 0)
    now = 1040.0
    store.write([block(n) for n in range(10, 100, 10)])
    store.close()
    now = 1100.0
    store = KvStore(StoreFolder(tmp_path, DIGEST, b"{}", limit), SIZES, limit, Lru(), lambda: now)
    first = 1000
    while store.stats.evicted < 9:
        store.write([block(first)])
        first += 10
    assert [n for n in range(0, 100, 10) if store.holds(key(n), 0)] == [0]
    store.close()


def test_of_a_chain_the_tail_makes_room_first(tmp_path: Path) -> None:
    store = opened(tmp_path, 40 * 8192)
    store.write([block(n) for n in range(10)])
    fill_up = 100
    while not store.stats.evicted:
        store.write([block(fill_up)])
        fill_up += 1
    assert [n for n in range(10) if not store.holds(key(n), 0)] == [9]
    store.close()


def test_of_a_chain_that_came_in_parts_the_tail_makes_room_first(tmp_path: Path) -> None:
    """Though its head was written before, and something else between them; after a restart, too."""
    time = itertools.count(1000.0)
    store = opened(tmp_path, 40 * 8192, now=time.__next__)
    store.write([block(n) for n in range(5)])
    store.write([block(20)])
    store.write([block(n) for n in range(5, 10)])
    number = 100
    for _ in range(2):
        evicted = store.stats.evicted
        while store.stats.evicted < evicted + 3:
            store.write([block(number)])
            number += 10  # a chain of one
        left = [n for n in (*range(10), 20) if store.holds(key(n), 0)]
        assert 20 not in left  # which is older than the tail
        assert left == list(range(len(left)))
        store.close()
        store = opened(tmp_path, 40 * 8192, now=time.__next__)
    assert 0 < len(left) < 8
    store.close()


def test_a_chain_that_is_longer_than_the_store_keeps_its_head(tmp_path: Path) -> None:
    store = opened(tmp_path, 40 * 8192)
    chain = [block(n)._replace(parent=key(n - 1)) for n in range(100)]
    there = store.write(chain)
    assert 20 < there < 40
    assert same(store, range(there))
    # Nor does more of it, in a batch of its own, take the place of what is before it.
    assert store.write(chain[there : there + 5]) == 0
    assert same(store, range(there))
    assert store.stats.evicted == 0
    # What is of another chain does.
    assert store.write([block(500), block(501)]) == 2
    assert same(store, range(there - 2))
    store.check_integrity()
    store.close()


def test_blocks_behind_windows_stand_for_themselves(tmp_path: Path) -> None:
    """Those that were not asked for make room before those behind them in their chain."""
    now = 1000.0
    folder = StoreFolder(tmp_path, DIGEST, b"{}", 40 * 8192)
    store = KvStore(folder, SIZES, 40 * 8192, Lru(), now=lambda: now, windowed=[1])
    store.write([block(n, group) for group in range(2) for n in range(10)])
    now = 2000.0
    for group in range(2):
        store.use([key(8), key(9)], group)
    number = 100
    while store.stats.evicted < 8:
        store.write([block(number)])
        number += 10
    assert [n for n in range(10) if store.holds(key(n), 1)] == [8, 9]
    assert same(store, range(10))
    store.close()


def test_a_slot_s_uses_are_those_of_its_block(tmp_path: Path) -> None:
    now = 1000.0
    store = opened(tmp_path, 40 * 8192, now=lambda: now)
    store.write([block(n) for n in range(3)])
    for _ in range(4):
        store.use([key(n) for n in range(3)], 0)
    store.refresh()
    (segment, slot), *_ = store.index.places([block(2).name])
    assert tuple(segment.uses()[slot]) == (1000, 4)
    now = 2000.0
    number = 100
    while store.holds(key(2), 0):
        store.write([block(number)])
        number += 10
    store.refresh()
    assert tuple(segment.uses()[slot]) == (2000, 0)
    store.close()


def test_new_blocks_are_new_after_a_restart(tmp_path: Path) -> None:
    """Also those in slots of blocks that were used long ago, and those never used."""
    now = 1000.0
    store = opened(tmp_path, 40 * 8192, now=lambda: now)
    fill(store, 100)
    now = 2000.0
    store.write([block(500)])
    store.close()
    again = opened(tmp_path, 40 * 8192, now=lambda: now)
    again.write([block(600)])
    assert again.holds(key(500), 0)
    again.close()


def test_a_limit_of_less_than_a_block_keeps_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path, 4096)
    assert not store.fits
    assert store.write([block(1)]) == 0
    store.close()


def test_a_clock_that_is_not_set_stops_nothing(tmp_path: Path) -> None:
    """Uses have four bytes for a time."""
    now = 2.0**33
    store = opened(tmp_path, now=lambda: now)
    store.write([block(n) for n in range(3)])
    store.use([key(0)], 0)
    store.keep([key(1)], 1000)
    store.refresh()
    now = -10.0
    store.write([block(n) for n in range(3, 6)])
    store.refresh()
    assert same(store, range(6))
    store.close()
