"""Who follows the changes of a cache knows what it holds."""

from __future__ import annotations

from array import array
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cache.block_table import BlockTable
from penstock.cache.changes import CacheChanges, ChangeLog
from penstock.cache.kv_cache import KvCache


class Follower:
    def __init__(self) -> None:
        self.position: int | None = None
        self.held: set[bytes] = set()
        self.snapshots = 0

    def take(self, changes: CacheChanges) -> None:
        assert not set(changes.added) & set(changes.removed)
        if changes.since is None:
            self.held = set(changes.added)
            self.snapshots += 1
        else:
            assert changes.since == self.position
            assert not self.held & set(changes.added)
            assert set(changes.removed) <= self.held
            self.held = (self.held | set(changes.added)) - set(changes.removed)
        self.position = changes.until


@given(
    st.lists(st.sampled_from(["clear", "ask", "ask late", *range(8)]), max_size=80),
    st.integers(1, 12),
)
def test_any_follower_knows_all(actions: list[str | int], kept: int) -> None:
    log, held = ChangeLog(kept), set[bytes]()
    quick, late = Follower(), Follower()
    for action in [*actions, "ask", "ask late"]:
        if action == "clear":
            held.clear()
            log.clear()
        elif isinstance(action, int):
            key = bytes([action])
            if key in held:
                held.remove(key)
                log.remove([key])
            else:
                held.add(key)
                log.add(key)
        else:
            follower = quick if action == "ask" else late
            follower.take(log.after(follower.position, held))
            assert follower.held == held


def test_positions_of_other_logs_are_none() -> None:
    log = ChangeLog()
    log.add(b"a")
    for position in (None, 2, 99):
        assert log.after(position, {b"a"}) == (None, 1, [b"a"], [])
    assert log.after(1, {b"a"}) == (1, 1, [], [])
    assert log.after(0, {b"a"}) == (0, 1, [b"a"], [])


@pytest.mark.parametrize("windows", [(None,), (None, 6), (6, None), (6,)])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_cache_tells_what_can_be_found(
    windows: tuple[int | None, ...], data: st.DataObject
) -> None:
    cache, follower = KvCache(24, 4, windows=windows), Follower()
    group = windows.index(None) if None in windows else 0
    tables: list[tuple[BlockTable, array[int]]] = []
    numbers = count()
    for _ in range(data.draw(st.integers(1, 20))):
        action = data.draw(st.sampled_from(["begin", "free", "ask", "reset"]))
        if action == "begin":
            tokens = array("i", data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=20)))
            table = BlockTable()
            prefix = cache.lookup(table, tokens, len(tokens) - 1)
            if cache.begin(table, prefix, len(tokens), len(tokens)) == len(tokens):
                cache.commit(table, tokens, len(tokens))
                tables.append((table, tokens))
            elif table.blocks:
                cache.free(table)
        elif action == "free" and tables:
            table, _ = tables.pop(next(numbers) % len(tables))
            cache.free(table)
        elif action == "reset":
            cache.reset()
        else:
            follower.take(cache.changes_after(follower.position))
    follower.take(cache.changes_after(follower.position))
    assert follower.held == set(cache._index.keys(group))
    cache.check_integrity()
