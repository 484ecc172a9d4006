from __future__ import annotations

import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import penstock
from penstock.cache.kv_cache import BlockTable, KvCache

SIZE = 4
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=4 * SIZE)  # few kinds: prefixes meet
SALTS = st.sampled_from(["", "", "", "x"])


class Holder:
    def __init__(self, salt: str, tokens: list[int]) -> None:
        self.salt = salt
        self.table = BlockTable(salt)
        self.tokens = array("i", tokens)
        self.done = 0
        self.offered = 0  # a block is offered once: one that was refused stays private


class CacheMachine(RuleBasedStateMachine):
    """Against a memory that records, per slot, the prefix it stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KvCache(10, SIZE)
        self.holders: list[Holder] = []
        self.memory: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.findable: dict[tuple[str, tuple[int, ...]], int] = {}
        self.private: set[Holder] = set()

    def held(self) -> set[int]:
        return {b for h in self.holders for b in h.table.block_ids}

    def taken(self, blocks: set[int]) -> None:
        """These blocks were handed out for new content."""
        for prefix in [p for p, b in self.findable.items() if b in blocks]:
            del self.findable[prefix]

    def write(self, holder: Holder, end: int) -> None:
        for p in range(holder.done, end):
            slot = holder.table.block_ids[p // SIZE] * SIZE + p % SIZE
            self.memory[slot] = (holder.salt, tuple(holder.tokens[: p + 1]))
        holder.done = end
        self.cache.commit(holder.table, holder.tokens, end)
        if holder not in self.private:
            for i in range(holder.offered, end // SIZE):
                prefix = (holder.salt, tuple(holder.tokens[: (i + 1) * SIZE]))
                self.findable.setdefault(prefix, holder.table.block_ids[i])
            holder.offered = end // SIZE

    def snapshot(self) -> object:
        pool = self.cache._pool
        return (list(pool.ref_counts), pool.kept(), [list(h.table.block_ids) for h in self.holders])

    @rule(tokens=TOKENS, salt=SALTS, reserve=st.integers(0, 2))
    def begin(self, tokens: list[int], salt: str, reserve: int) -> None:
        holder = Holder(salt, tokens)
        hits = self.cache.lookup(holder.table, holder.tokens, len(tokens) - 1)
        expected = []
        for i in range((len(tokens) - 1) // SIZE):
            block = self.findable.get((salt, tuple(tokens[: (i + 1) * SIZE])))
            if block is None:
                break
            expected.append(block)
        assert hits == expected
        free_after = 10 - len(self.held() | set(hits))
        needed = -(-len(tokens) // SIZE) - len(hits)
        before = self.snapshot()
        ok = self.cache.begin(holder.table, hits, len(tokens), len(tokens), reserve)
        assert ok == (needed + reserve <= free_after)
        if not ok:
            assert self.snapshot() == before
            return
        assert list(holder.table.block_ids[: len(hits)]) == hits
        new = set(holder.table.block_ids[len(hits) :])
        assert new.isdisjoint(self.held())
        self.taken(new)
        holder.offered = len(hits)
        holder.done = len(hits) * SIZE
        self.holders.append(holder)
        self.write(holder, len(tokens))

    @rule(data=st.data(), more=TOKENS)
    def extend(self, data: st.DataObject, more: list[int]) -> None:
        if not self.holders:
            return
        holder = data.draw(st.sampled_from(self.holders))
        end = holder.done + len(more)
        old = list(holder.table.block_ids)
        others = {b for h in self.holders if h is not holder for b in h.table.block_ids}
        copy = holder.done % SIZE != 0 and old[-1] in others
        needed = -(-end // SIZE) - len(old) + copy
        before, copies = self.snapshot(), []
        room = self.cache.room(holder.table, holder.done)
        ok = self.cache.extend(holder.table, holder.done, end, copies)
        assert ok == (len(more) <= room)
        assert ok == (needed <= 10 - len(others | set(old)))
        assert len(copies) == (ok and copy)
        if not ok:
            assert self.snapshot() == before
            return
        self.taken(set(holder.table.block_ids) - set(old))
        for source, target in copies:
            assert source == old[-1]
            for offset in range(SIZE):
                if source * SIZE + offset in self.memory:
                    self.memory[target * SIZE + offset] = self.memory[source * SIZE + offset]
        holder.tokens.extend(more)
        self.write(holder, end)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        if not self.holders:
            return
        parent = data.draw(st.sampled_from(self.holders))
        child = Holder(parent.salt, list(parent.tokens))
        child.table = self.cache.fork(parent.table)
        child.done, child.offered = parent.done, parent.offered
        assert child.table.block_ids == parent.table.block_ids
        self.holders.append(child)
        if parent in self.private:
            self.private.add(child)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if not self.holders:
            return
        holder = data.draw(st.sampled_from(self.holders))
        self.cache.free(holder.table)
        self.holders.remove(holder)
        self.private.discard(holder)

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.findable.clear()
        self.private = set(self.holders)

    @invariant()
    def books_and_contents_agree(self) -> None:
        self.cache.check_integrity()
        assert self.cache.num_used_blocks == len(self.held())
        assert self.cache.num_cached_blocks == len(self.findable)
        filled: set[int] = set()
        for holder in self.holders:
            for p in range(holder.done):
                slot = holder.table.block_ids[p // SIZE] * SIZE + p % SIZE
                assert self.memory[slot] == (holder.salt, tuple(holder.tokens[: p + 1]))
                filled.add(slot)
        assert self.cache.slots() == (len(self.held()) * SIZE, len(filled))


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestKvCache = CacheMachine.TestCase


def _run(cache: KvCache, tokens: list[int]) -> BlockTable:
    """Hold the blocks of a sequence that is fully computed."""
    table, ids = BlockTable(), array("i", tokens)
    hits = cache.lookup(table, ids, len(ids) - 1)
    assert cache.begin(table, hits, len(ids), len(ids))
    cache.commit(table, ids, len(ids))
    return table


def _hits(cache: KvCache, tokens: list[int]) -> int:
    return len(cache.lookup(BlockTable(), array("i", tokens), len(tokens)))


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
    hits = cache.lookup(table, array("i", old), 8)
    assert cache.begin(table, hits, 8, 8)
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
    first = tables[0].block_ids[0]
    assert cache.lookup(BlockTable(), tokens, SIZE) == [first]
    cache.free(tables[1])
    assert cache.num_cached_blocks == 1
    cache.free(tables[0])
    cache.check_integrity()
    assert cache.lookup(BlockTable(), tokens, SIZE) == [first]


def test_without_prefix_caching_nothing_is_found() -> None:
    cache = KvCache(4, SIZE, enable_prefix_caching=False)
    cache.free(_run(cache, list(range(8))))
    assert _hits(cache, list(range(8))) == 0
    assert cache.num_cached_blocks == 0
    cache.check_integrity()


def test_integrity_check_notices_a_leak_and_a_forged_owner() -> None:
    cache = KvCache(4, SIZE)
    table = _run(cache, list(range(8)))
    lost = table.block_ids.pop()
    with pytest.raises(AssertionError):
        cache.check_integrity()
    table.block_ids.append(lost)
    cache.check_integrity()
    cache._pool.share(lost)
    with pytest.raises(AssertionError, match="do not match owners"):
        cache.check_integrity()


def test_no_array_library_is_imported() -> None:
    code = "import sys, penstock.cache.kv_cache; sys.exit('numpy' in sys.modules)"
    source = str(Path(penstock.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}).returncode == 0
