from __future__ import annotations

import subprocess
import sys
from array import array
from pathlib import Path

import pytest

import penstock
from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import Chunk
from penstock.cache.kv_cache import KvCache

SIZE = 4


def _run(cache: KvCache, tokens: list[int]) -> BlockTable:
    """Hold the blocks of a sequence that is fully computed."""
    table, ids = BlockTable(), array("i", tokens)
    prefix = cache.lookup(table, ids, len(ids) - 1)
    assert cache.begin(table, prefix, len(ids), len(ids)) == len(ids)
    cache.commit(table, ids, len(ids))
    return table


def _hits(cache: KvCache, tokens: list[int]) -> int:
    return cache.lookup(BlockTable(), array("i", tokens), len(tokens)).num_tokens // SIZE


def test_a_chain_loses_its_tail_first_and_the_older_chain_before_the_newer() -> None:
    cache = KvCache(6, SIZE)
    old, new = list(range(12)), list(range(100, 112))
    first, second = _run(cache, old), _run(cache, new)
    cache.free(first)
    cache.free(second)
    left = []
    for i in range(6):
        _run(cache, [1000 + i] * SIZE)
        left.append((_hits(cache, old), _hits(cache, new)))
    assert left == [(2, 3), (1, 3), (0, 3), (0, 2), (0, 1), (0, 0)]


def test_a_hit_makes_a_chain_recent() -> None:
    cache = KvCache(4, SIZE)
    old, new = list(range(8)), list(range(100, 108))
    for tokens in (old, new):
        cache.free(_run(cache, tokens))
    table = BlockTable()
    assert cache.begin(table, cache.lookup(table, array("i", old), 8), 8, 8) == 8
    cache.free(table)
    _run(cache, [7] * SIZE * 2)
    assert (_hits(cache, old), _hits(cache, new)) == (2, 0)


def test_blank_blocks_are_reused_before_cached_ones() -> None:
    cache = KvCache(3, SIZE)
    cache.free(_run(cache, [1] * SIZE))
    cache.free(_run(cache, [2] * (SIZE - 1)))  # never full: blank
    _run(cache, [3] * SIZE * 2)
    assert _hits(cache, [1] * SIZE) == 1


def test_a_duplicate_stays_private() -> None:
    cache = KvCache(4, SIZE)
    tokens = array("i", range(SIZE))
    tables = [BlockTable(), BlockTable()]
    for table in tables:
        assert cache.begin(table, cache.lookup(table, tokens, SIZE), SIZE, SIZE)
    for table in tables:
        cache.commit(table, tokens, SIZE)
    first = tables[0].blocks[0][0]
    assert cache.lookup(BlockTable(), tokens, SIZE)[:2] == (SIZE, ([first],))
    cache.free(tables[1])
    assert cache.num_cached_blocks == 1
    cache.free(tables[0])
    cache.check_integrity()
    assert cache.lookup(BlockTable(), tokens, SIZE)[:2] == (SIZE, ([first],))


def test_without_prefix_caching_nothing_is_found() -> None:
    cache = KvCache(4, SIZE, enable_prefix_caching=False)
    cache.free(_run(cache, list(range(8))))
    assert _hits(cache, list(range(8))) == 0
    assert cache.num_cached_blocks == 0
    cache.check_integrity()


def test_integrity_check_notices_a_leak_and_a_forged_owner() -> None:
    cache = KvCache(4, SIZE)
    table = _run(cache, list(range(8)))
    lost = table.blocks[0].pop()
    with pytest.raises(AssertionError):
        cache.check_integrity()
    table.blocks[0].append(lost)
    cache.check_integrity()
    cache._pool.share(lost)
    with pytest.raises(AssertionError, match="do not match owners"):
        cache.check_integrity()


def test_no_array_library_is_imported() -> None:
    code = "import sys, penstock.cache.kv_cache; sys.exit('numpy' in sys.modules)"
    source = str(Path(penstock.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}).returncode == 0


def test_a_window_holds_no_more_than_itself_and_a_block() -> None:
    """This holds at any length, whatever is computed at once."""
    cache = KvCache(200, SIZE, windows=(None, 10, 1, 4))
    table, tokens = BlockTable(), array("i", range(4 * 160))
    assert cache.begin(table, None, 50, 160) == 50
    for done, chunk in ((0, 50), (50, 30), *((n, 1) for n in range(80, 160))):
        assert cache.extend(table, done, done + chunk, [])
        cache.commit(table, tokens, done + chunk)
        held = [len(b) - f for b, f in zip(table.blocks, table.forgotten, strict=True)]
        assert held[0] == -(-(done + chunk) // SIZE)
        assert all(
            SIZE * count <= window - 1 + 2 * (SIZE - 1) + 1
            for count, window in zip(held[1:], (10, 1, 4), strict=True)
        )
        assert cache.num_used_blocks == sum(held)
    assert cache.blocks_for(160) == 40 + 4 + 1 + 2


def test_a_prefix_is_found_as_far_as_windows_reach() -> None:
    cache = KvCache(40, SIZE, windows=(None, 6))
    tokens = list(range(40))
    cache.free(_run(cache, tokens))
    assert _hits(cache, tokens) == 10
    table = BlockTable()
    whole = cache.lookup(table, array("i", tokens), 40)
    assert [len(blocks) for blocks in whole.blocks] == [10, 2]
    assert cache.lookup(BlockTable(), array("i", tokens), 23).num_tokens == 20
    assert cache.begin(table, whole, 44, 44) == 44
    assert table.forgotten == [0, 8]
    cache.check_integrity()


def test_blocks_behind_a_window_are_found_until_they_are_reused() -> None:
    cache = KvCache(14, SIZE, windows=(None, 4))
    tokens = array("i", range(20))
    table = BlockTable()
    assert cache.begin(table, None, 20, 20) == 20
    cache.commit(table, tokens, 20)
    assert table.forgotten == [0, 4]
    assert _hits(cache, tokens[:12].tolist()) == 3  # it needs the third block of both groups
    other = BlockTable()
    assert cache.begin(other, None, 12, 12) == 12  # 4 blank blocks, and the first 2 behind
    assert _hits(cache, tokens[:8].tolist()) == 0
    assert _hits(cache, tokens[:12].tolist()) == 3
    cache.check_integrity()


def test_windows_that_cannot_be_are_refused() -> None:
    for windows in ((), (0,), (None, -1), (Chunk(0),)):
        with pytest.raises(ValueError, match="windows of at least 1"):
            KvCache(4, SIZE, windows=windows)
