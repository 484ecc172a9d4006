"""The cache against a memory that records what each slot stands for, through any history."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import Chunk, Window
from penstock.cache.kv_cache import KvCache

SIZE = 4
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=4 * SIZE)  # few kinds: prefixes meet
SALTS = st.sampled_from(["", "", "", "x"])


Entry = tuple[str, tuple[int, ...], int]  # salt, tokens up to here, group


class Holder:
    def __init__(self, salt: str, tokens: list[int], groups: int) -> None:
        self.salt = salt
        self.table = BlockTable(salt)
        self.tokens = array("i", tokens)
        self.done = 0
        self.offered = 0  # a block is offered once: one that was refused stays private
        self.first = [0] * groups  # of each group, the first place that is held

    def held(self) -> list[tuple[int, int, int]]:
        """(group, place, block) of every block."""
        return [
            (group, place, blocks[place])
            for group, blocks in enumerate(self.table.blocks)
            for place in range(self.first[group], len(blocks))
        ]

    def prefix(self, places: int, group: int) -> Entry:
        return (self.salt, tuple(self.tokens[: places * SIZE]), group)


class CacheMachine(RuleBasedStateMachine):
    """The cache beside a memory that records, per slot, the prefix and the group it stands for."""

    windows: tuple[Window | None, ...] = (None,)
    blocks = 10

    def __init__(self) -> None:
        super().__init__()
        self.cache = KvCache(self.blocks, SIZE, windows=self.windows)
        self.holders: list[Holder] = []
        self.memory: dict[int, Entry] = {}
        self.findable: dict[Entry, int] = {}
        self.private: set[Holder] = set()

    def seen(self, group: int, position: int) -> int:
        """The first position that a token sees in the group."""
        window = self.windows[group]
        if isinstance(window, Chunk):
            return position // window.size * window.size
        return 0 if window is None else max(position - window + 1, 0)

    def most(self, group: int) -> int:
        """The most blocks that hold what a token sees, wherever it is."""
        return max(p // SIZE - self.seen(group, p) // SIZE + 1 for p in range(20 * SIZE))

    def held(self, *others: Holder) -> set[int]:
        return {b for h in self.holders if h not in others for _, _, b in h.held()}

    def free(self) -> int:
        return self.blocks - len(self.held())

    def taken(self, blocks: set[int]) -> None:
        """These blocks were handed out for new content."""
        for prefix in [p for p, b in self.findable.items() if b in blocks]:
            del self.findable[prefix]

    def write(self, holder: Holder, end: int) -> None:
        for p in range(holder.done, end):
            for group, blocks in enumerate(holder.table.blocks):
                entry = (holder.salt, tuple(holder.tokens[: p + 1]), group)
                self.memory[blocks[p // SIZE] * SIZE + p % SIZE] = entry
        self.commit(holder, end)

    def commit(self, holder: Holder, end: int) -> None:
        holder.done = end
        self.cache.commit(holder.table, holder.tokens, end)
        if holder not in self.private:
            for i in range(holder.offered, end // SIZE):
                for group, blocks in enumerate(holder.table.blocks):
                    self.findable.setdefault(holder.prefix(i + 1, group), blocks[i])
            holder.offered = end // SIZE
        for group, first in enumerate(holder.first):
            while (first + 1) * SIZE <= self.seen(group, end):
                first += 1
            holder.first[group] = first

    def snapshot(self) -> object:
        pool = self.cache._pool
        tables = [[list(blocks) for blocks in h.table.blocks] for h in self.holders]
        return (list(pool.ref_counts), pool.kept(), tables)

    def longest(self, holder: Holder, most: int) -> list[list[int]]:
        """The blocks of the longest prefix that can be found, by group."""
        for length in range(most, -1, -1):
            found = []
            for group in range(len(self.windows)):
                first = self.seen(group, length * SIZE) // SIZE
                places = range(first, length)
                found.append([self.findable.get(holder.prefix(i + 1, group)) for i in places])
            if not any(None in blocks for blocks in found):
                return [[block for block in blocks if block is not None] for blocks in found]
        raise AssertionError

    @rule(tokens=TOKENS, salt=SALTS, reserve=st.integers(0, 2))
    def begin(self, tokens: list[int], salt: str, reserve: int) -> None:
        groups = len(self.windows)
        holder = Holder(salt, tokens, groups)
        prefix = self.cache.lookup(holder.table, holder.tokens, len(tokens) - 1)
        assert list(prefix.blocks) == self.longest(holder, (len(tokens) - 1) // SIZE)
        found = prefix.num_tokens
        held = self.held()
        free = self.blocks - len(held)
        needed = 0  # of the free ones, if it is computed token by token
        for group, blocks in enumerate(prefix.blocks):
            assert len(blocks) == found // SIZE - self.seen(group, found) // SIZE
            new = -(-len(tokens) // SIZE) - found // SIZE
            needed += min(new + len(set(blocks) - held), self.most(group))
        before = self.snapshot()
        end = self.cache.begin(holder.table, prefix, len(tokens), len(tokens), reserve)
        assert bool(end) == (needed + reserve * groups <= free)
        if not end:
            assert self.snapshot() == before
            return
        holder.first = [found // SIZE - len(blocks) for blocks in prefix.blocks]
        new = set()
        for first, found_blocks, blocks in zip(
            holder.first, prefix.blocks, holder.table.blocks, strict=True
        ):
            assert list(blocks[first : found // SIZE]) == found_blocks
            new |= set(blocks[found // SIZE :])
        assert new.isdisjoint(self.held().union(*prefix.blocks))
        assert found < end <= len(tokens)
        if end < len(tokens):  # what a step may take is less than what was asked for
            assert self.windows != (None,)
            left = free - len(set().union(*prefix.blocks) - held) - len(new)
            assert left - reserve * groups < groups
        self.taken(new)
        holder.offered, holder.done = found // SIZE, found
        self.holders.append(holder)
        self.write(holder, end)
        while holder.done < len(tokens):
            fitting = self.cache.num_fitting(holder.table, holder.done)
            assert fitting > 0, "it fitted"
            old = {block for _, _, block in holder.held()}
            end = min(holder.done + fitting, len(tokens))
            assert self.cache.extend(holder.table, holder.done, end, [])
            self.taken({block for _, _, block in holder.held()} - old)
            self.write(holder, end)

    @rule(data=st.data(), more=TOKENS, rejected=st.integers(0, 2 * SIZE))
    def extend(self, data: st.DataObject, more: list[int], rejected: int) -> None:
        """Tokens are computed, of which the last may be given up, as drafts are."""
        if not self.holders:
            return
        holder = data.draw(st.sampled_from(self.holders))
        groups = len(self.windows)
        end = holder.done + len(more)
        old = {(group, place): block for group, place, block in holder.held()}
        last = (len(holder.table.blocks[0]) - 1) if holder.done % SIZE else 0
        copied = {g: old[g, last] for g in range(groups) if holder.done % SIZE}
        copied = {g: b for g, b in copied.items() if b in self.held(holder)}
        assert len(copied) in (0, groups)
        needed = (-(-end // SIZE) - len(holder.table.blocks[0])) * groups + len(copied)
        before, copies = self.snapshot(), []
        fitting = self.cache.num_fitting(holder.table, holder.done)
        ok = self.cache.extend(holder.table, holder.done, end, copies)
        assert ok == (len(more) <= fitting)
        assert ok == (needed <= self.blocks - len(self.held(holder) | set(old.values())))
        assert sorted(source for source, _ in copies) == (sorted(copied.values()) if ok else [])
        if not ok:
            assert self.snapshot() == before
            return
        self.taken({block for _, _, block in holder.held()} - set(old.values()))
        for source, target in copies:
            for offset in range(SIZE):
                if source * SIZE + offset in self.memory:
                    self.memory[target * SIZE + offset] = self.memory[source * SIZE + offset]
        holder.tokens.extend(more)
        kept = max(end - rejected, holder.done + 1)
        for p in range(kept, end):
            for blocks in holder.table.blocks:
                self.memory[blocks[p // SIZE] * SIZE + p % SIZE] = ("rejected", (), 0)
        del holder.tokens[kept:]
        self.write(holder, kept)
        if kept < end:
            self.cache.trim(holder.table)
            assert len(holder.table.blocks[0]) == -(-kept // SIZE)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        if not self.holders:
            return
        parent = data.draw(st.sampled_from(self.holders))
        child = Holder(parent.salt, list(parent.tokens), len(self.windows))
        child.table = self.cache.fork(parent.table)
        child.done, child.offered, child.first = parent.done, parent.offered, list(parent.first)
        assert child.held() == parent.held()
        self.holders.append(child)
        if parent in self.private:
            self.private.add(child)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
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
        assert self.cache.num_held_blocks == sum(len(h.held()) for h in self.holders)
        assert self.cache.num_cached_blocks == len(self.findable)
        filled: set[int] = set()
        for holder in self.holders:
            assert len(holder.held()) <= self.cache.blocks_for(holder.done)
            for group, place, block in holder.held():
                for offset in range(SIZE):
                    p = place * SIZE + offset
                    if p < holder.done:
                        slot = block * SIZE + offset
                        entry = (holder.salt, tuple(holder.tokens[: p + 1]), group)
                        assert self.memory[slot] == entry
                        filled.add(slot)
            for group, first in enumerate(holder.first):  # what the next token sees is held
                assert first * SIZE <= self.seen(group, holder.done)
        assert self.cache.slots() == (len(self.held()) * SIZE, len(filled))


class WindowMachine(CacheMachine):
    windows = (6,)


class GroupsMachine(CacheMachine):
    windows = (None, 5)
    blocks = 16


class ManyGroupsMachine(CacheMachine):
    windows = (None, 9, 1, None, SIZE + 1)
    blocks = 35


class ChunkMachine(CacheMachine):
    windows = (Chunk(6),)


class ChunkGroupsMachine(CacheMachine):
    windows = (None, Chunk(2 * SIZE), Chunk(9), 5, Chunk(1))
    blocks = 35


for _machine in (
    CacheMachine,
    WindowMachine,
    GroupsMachine,
    ManyGroupsMachine,
    ChunkMachine,
    ChunkGroupsMachine,
):
    _machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestKvCache = CacheMachine.TestCase
# Machines of many groups have these, too.
TestOneWindow = pytest.mark.slow(WindowMachine.TestCase)
TestTwoGroups = pytest.mark.slow(GroupsMachine.TestCase)
TestChunks = pytest.mark.slow(ChunkMachine.TestCase)
TestGroupsOfChunks = ChunkGroupsMachine.TestCase
TestManyGroups = ManyGroupsMachine.TestCase
