"""State slots against a memory that records what each has seen, through any history."""

from __future__ import annotations

from array import array
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.cache.block_table import BlockTable
from penstock.cache.kv_cache import KvCache
from penstock.cache.state_slots import StateLimits

SIZE, SEQUENCES, BLOCKS = 4, 3, 60
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=6 * SIZE)  # few kinds: prefixes meet
SALTS = st.sampled_from(["", "", "x"])

Seen = tuple[str, tuple[int, ...]]  # salt, tokens


class Holder:
    def __init__(self, salt: str, tokens: list[int]) -> None:
        self.salt = salt
        self.table = BlockTable(salt)
        self.tokens = array("i", tokens)
        self.done = 0

    def prefix(self, count: int) -> Seen:
        return (self.salt, tuple(self.tokens[:count]))


class StatesMachine(RuleBasedStateMachine):
    """Steps are composed, run at once, and taken in later."""

    spare = 3
    windows: tuple[int | None, ...] = (None,)

    def __init__(self) -> None:
        super().__init__()
        self.cache = KvCache(
            BLOCKS,
            SIZE,
            windows=self.windows,
            states=StateLimits(SEQUENCES + self.spare, SEQUENCES, interval=3 * SIZE),
        )
        self.holders: list[Holder] = []
        self.memory: dict[int, Seen] = {}
        self.in_flight: deque[tuple[Holder, int]] = deque()
        self.key_of: dict[bytes, Seen] = {}

    def step(self, holder: Holder, end: int, tentative: int = 0) -> None:
        """Compute a sequence up to ``end``."""
        assert self.cache.extend(holder.table, holder.done, end, [])
        for source, target in self.cache.take_state_copies():
            self.memory[target] = self.memory[source]
        hold = holder.table.state
        assert hold is not None
        if hold.seen:
            assert self.memory[hold.slot] == holder.prefix(hold.seen)
        seen, stored = hold.seen, end - tentative
        (snapshots,) = self.cache.compose_states([(holder.table, stored)])
        for border, slot in snapshots:
            assert seen < border <= stored
            assert border % SIZE == 0
            assert slot not in {h.table.state.slot for h in self.holders if h.table.state}
            self.memory[slot] = holder.prefix(border)
        self.memory[hold.slot] = holder.prefix(stored)
        holder.done = end
        self.cache.submitted(holder.table, end)
        self.in_flight.append((holder, end))

    def take_in(self) -> None:
        holder, end = self.in_flight.popleft()
        if holder not in self.holders:
            return
        self.cache.publish(holder.table, holder.tokens, end)
        self.told(holder)

    def told(self, holder: Holder) -> None:
        """Note what the table's keys stand for."""
        for i, key in enumerate(holder.table.keys):
            self.key_of[key] = holder.prefix((i + 1) * SIZE)

    @rule(tokens=TOKENS, salt=SALTS, step=st.integers(1, 20))
    def begin(self, tokens: list[int], salt: str, step: int) -> None:
        if len(self.holders) == SEQUENCES:
            return
        holder = Holder(salt, tokens)
        prefix = self.cache.lookup(holder.table, holder.tokens, len(tokens) - 1)
        self.told(holder)
        if not self.cache.begin(holder.table, prefix, len(tokens), len(tokens)):
            return
        assert holder.table.state is not None
        holder.done = prefix.num_tokens
        assert holder.table.state.seen == prefix.num_tokens
        self.holders.append(holder)
        while holder.done < len(tokens):
            self.step(holder, min(holder.done + step, len(tokens)))

    @rule(
        data=st.data(),
        more=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        accepted=st.integers(0, 9),
    )
    def verify(self, data: st.DataObject, more: list[int], accepted: int) -> None:
        """One token and drafts behind it, of which the last are taken back."""
        if not self.holders:
            return
        holder = data.draw(st.sampled_from(self.holders))
        if self.cache.num_fitting(holder.table, holder.done) < len(more):
            return
        while self.in_flight:  # what follows depends on what is accepted
            self.take_in()
        start = holder.done
        holder.tokens.extend(more)
        self.step(holder, start + len(more), tentative=len(more) - 1)
        self.in_flight.pop()
        holder.done = start + 1 + min(accepted, len(more) - 1)
        del holder.tokens[holder.done :]
        self.cache.commit(holder.table, holder.tokens, holder.done)
        self.cache.trim(holder.table)
        self.told(holder)

    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def decode(self, data: st.DataObject, more: list[int]) -> None:
        if not self.holders:
            return
        holder = data.draw(st.sampled_from(self.holders))
        for token in more:
            if self.cache.num_fitting(holder.table, holder.done) < 1:
                return
            holder.tokens.append(token)
            self.step(holder, holder.done + 1)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        if not self.holders or len(self.holders) == SEQUENCES:
            return
        parent = data.draw(st.sampled_from(self.holders))
        child = Holder(parent.salt, list(parent.tokens))
        child.table = self.cache.fork(parent.table)
        child.done = parent.done
        self.holders.append(child)
        for source, target in self.cache.take_state_copies():
            self.memory[target] = self.memory[source]

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.holders:
            holder = data.draw(st.sampled_from(self.holders))
            self.holders.remove(holder)
            self.cache.free(holder.table)

    @rule()
    def land(self) -> None:
        if self.in_flight:
            self.take_in()

    @rule()
    def reset(self) -> None:
        self.cache.reset()

    @invariant()
    def books_and_contents_agree(self) -> None:
        self.cache.check_integrity()
        states = self.cache._states
        assert states is not None
        assert states._pool.num_free >= SEQUENCES - len(self.holders), "a sequence might lack one"
        for slot in states._index.blocks():
            key = states._index._keys[slot]
            assert self.memory[slot] == self.key_of[key], "a state is found for what it is not"
        for holder in self.holders:
            assert holder.table.state is not None
            if holder.table.state.seen and not self.cache._states._copies:
                assert self.memory[holder.table.state.slot] == holder.prefix(
                    holder.table.state.seen
                )


class NoSpareMachine(StatesMachine):
    spare = 0


class WindowsMachine(StatesMachine):
    spare = 8
    windows = (None, 6)


for _machine in (StatesMachine, NoSpareMachine, WindowsMachine):
    _machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStates = pytest.mark.slow(StatesMachine.TestCase)
TestNoSpare = NoSpareMachine.TestCase
TestStatesWithWindows = WindowsMachine.TestCase
