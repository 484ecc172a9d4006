"""Which table has which state slot, and the copies that forks take."""

from __future__ import annotations

from array import array

import pytest

from penstock.cache.block_table import BlockTable
from penstock.cache.kv_cache import KvCache
from penstock.cache.state_slots import NO_STATE

SIZE = 4


def cache_of(num_states: int) -> KvCache:
    return KvCache(20, SIZE, enable_prefix_caching=False, num_states=num_states)


def begun(cache: KvCache, tokens: int = 6) -> BlockTable:
    table = BlockTable()
    assert cache.begin(table, None, tokens, tokens)
    cache.commit(table, array("i", range(tokens)), tokens)
    return table


def test_a_table_has_a_slot_while_it_holds_blocks() -> None:
    cache = cache_of(3)
    tables = [begun(cache) for _ in range(3)]
    assert sorted(table.state for table in tables) == [0, 1, 2]
    assert cache.num_states == (3, 3)
    cache.check_integrity()
    freed = tables[1].state
    cache.free(tables[1])
    assert tables[1].state == NO_STATE
    assert cache.num_states == (2, 3)
    assert begun(cache).state == freed
    cache.check_integrity()


def test_a_fork_copies_its_parent_s_slot_once() -> None:
    cache = cache_of(3)
    parent = begun(cache)
    child, other = cache.fork(parent), cache.fork(parent)
    assert len({parent.state, child.state, other.state}) == 3
    expected = [(parent.state, child.state), (parent.state, other.state)]
    assert cache.take_state_copies() == expected
    assert cache.take_state_copies() == []
    cache.free(parent)
    cache.check_integrity()


def test_tables_of_models_without_states_have_none() -> None:
    cache = KvCache(20, SIZE)
    table = begun(cache)
    assert table.state == cache.fork(table).state == NO_STATE
    assert cache.take_state_copies() == []
    assert cache.num_states == (0, 0)


def test_prefixes_are_not_cached() -> None:
    with pytest.raises(ValueError, match="prefixes are not cached"):
        KvCache(20, SIZE, num_states=2)


def test_a_lost_slot_is_noticed() -> None:
    cache = cache_of(2)
    table = begun(cache)
    table.state = 1 - table.state
    with pytest.raises(AssertionError, match="state slot"):
        cache.check_integrity()
