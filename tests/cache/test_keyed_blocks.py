"""Blocks that come into the cache from elsewhere: found like those that sequences left, and owned
by nobody."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cache.block_table import BlockTable
from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import chain_keys

SIZE = 4
TOKENS = array("i", range(100))
KEYS = chain_keys("", TOKENS, 8, SIZE)


def nothing(places: object, blocks: object) -> None:
    pass


def found(cache: KvCache, tokens: array[int] = TOKENS) -> int:
    return cache.lookup(BlockTable(), tokens, len(tokens) - 1).num_tokens


def test_keys_are_those_of_tables() -> None:
    table = BlockTable("salt")
    cache = KvCache(10, SIZE)
    cache.lookup(table, TOKENS, 1)
    cache.keyed.adopt(chain_keys("salt", TOKENS, 3, SIZE), 0, nothing)
    assert cache.lookup(table, TOKENS, 99).num_tokens == 3 * SIZE
    assert table.keys[:3] == chain_keys("salt", TOKENS, 3, SIZE)
    assert found(cache) == 0  # of another salt


def test_adopted_blocks_are_a_prefix_that_sequences_take() -> None:
    cache = KvCache(10, SIZE)
    seen: list[tuple[list[int], list[int]]] = []
    assert cache.keyed.adopt(KEYS[:3], 0, lambda p, b: seen.append((list(p), b))) == 3
    assert seen[0][0] == [0, 1, 2]
    assert found(cache) == 3 * SIZE
    assert cache.num_used_blocks == 0
    assert cache.num_kept_blocks == 3
    # Those that are there are left out.
    assert cache.keyed.adopt(KEYS[1:5], 0, lambda p, b: seen.append((list(p), b))) == 2
    assert seen[1][0] == [2, 3]
    assert cache.keyed.adopt(KEYS[:5], 0, nothing) == 0
    table = BlockTable()
    prefix = cache.lookup(table, TOKENS, 99)
    assert cache.begin(table, prefix, 22, 22)
    assert list(table.blocks[0][:5]) == [*seen[0][1], *seen[1][1]]
    cache.check_integrity()
    cache.free(table)
    cache.check_integrity()


def test_what_could_not_be_written_is_not_found() -> None:
    cache = KvCache(10, SIZE)

    def fails(places: object, blocks: object) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.keyed.adopt(KEYS[:3], 0, fails)
    assert found(cache) == cache.num_kept_blocks == 0
    assert cache.num_free_blocks == 10
    cache.check_integrity()


def test_blocks_that_run_are_not_taken() -> None:
    cache = KvCache(4, SIZE)
    table = BlockTable("other")
    assert cache.begin(table, None, 12, 12)
    assert cache.keyed.num_free == 1
    with pytest.raises(IndexError):
        cache.keyed.adopt(KEYS[:2], 0, nothing)
    assert cache.keyed.adopt(KEYS[:1], 0, nothing) == 1
    cache.check_integrity()


def test_a_renewed_chain_loses_its_tail_first_and_after_others() -> None:
    cache = KvCache(8, SIZE)
    for first in range(0, 4, 2):  # as pieces come
        cache.keyed.adopt(KEYS[first : first + 2], 0, nothing)
        cache.keyed.renew(KEYS[: first + 2], 0)
    other = chain_keys("other", TOKENS, 4, SIZE)
    cache.keyed.adopt(other, 0, nothing)
    cache.keyed.renew([*KEYS[:4], b"unknown"], 0)
    taken = BlockTable("third")
    assert cache.begin(taken, None, 5 * SIZE, 5 * SIZE)
    assert not any(cache.keyed.find(key, 0) is not None for key in other)
    assert found(cache) == 3 * SIZE
    cache.check_integrity()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_books_agree_whatever_comes_and_goes(data: st.DataObject) -> None:
    windows = data.draw(st.sampled_from([(None,), (None, 6), (5, 9)]))
    cache = KvCache(data.draw(st.integers(4, 16)), SIZE, windows=windows)
    tables: list[tuple[BlockTable, array[int]]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        group = data.draw(st.integers(0, len(windows) - 1))
        first = data.draw(st.integers(0, 6))
        keys = KEYS[first : data.draw(st.integers(first, 8))]
        match data.draw(st.sampled_from(["adopt", "fail", "renew", "begin", "free", "reset"])):
            case "adopt" if len(keys) <= cache.keyed.num_free:
                cache.keyed.adopt(keys, group, nothing)
                assert all(cache.keyed.find(key, group) is not None for key in keys)
            case "fail" if keys and len(keys) <= cache.keyed.num_free:

                def fails(places: object, blocks: object) -> None:
                    raise ZeroDivisionError

                if any(cache.keyed.find(key, group) is None for key in keys):
                    with pytest.raises(ZeroDivisionError):
                        cache.keyed.adopt(keys, group, fails)
            case "renew":
                cache.keyed.renew(keys, group)
            case "begin":
                tokens, table = TOKENS[: data.draw(st.integers(2, 20))], BlockTable()
                prefix = cache.lookup(table, tokens, len(tokens) - 1)
                end = cache.begin(table, prefix, len(tokens), len(tokens))
                if end:
                    cache.commit(table, tokens, end)
                    tables.append((table, tokens))
            case "free" if tables:
                cache.free(tables.pop(data.draw(st.integers(0, len(tables) - 1)))[0])
            case "reset":
                cache.reset()
        cache.check_integrity()
