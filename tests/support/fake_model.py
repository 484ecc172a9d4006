"""A model without arithmetic: its "keys and values" and "logits" are hashes of what it reads.

It reads and writes a cache memory through ``StepInput`` alone, so that a wrong slot, block table,
copy or stale prefix changes its output. ``reference`` computes the same from the tokens alone.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import Chunk, Window
from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix_cache import PrefixCache
from penstock.engine.pooling import Embeddings
from penstock.engine.step_builder import build_step_input
from penstock.interface.messages import SequenceUpdate
from penstock.interface.step import StepInput
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState
from support.fake_states import NOTHING, FakeStates, State, after

Entry = tuple[int, int, int]  # token, position, hash of all before and itself, and the group

Windows = tuple[Window | None, ...]
"""The window of each group of layers; None: all. Others are at least 2."""


def seen_from(window: Window | None, position: int) -> int:
    """The first position that the token at ``position`` sees."""
    if isinstance(window, Chunk):
        return position // window.size * window.size
    return 0 if window is None else max(position - window + 1, 0)


def _entry(before: int, token: int, position: int, group: int = 0) -> Entry:
    return (token, position, hash((before - group, token, position)) + group)


def _before(entries: list[Entry], window: Window | None, position: int, group: int) -> int:
    """The hash of what precedes ``position`` in its group; chunks do not know of each other."""
    begins = isinstance(window, Chunk) and position % window.size == 0
    return group if begins or not entries else entries[-1][2]


def _visible(groups: list[list[Entry]], windows: Windows) -> tuple[Entry, ...]:
    """What the last of these entries sees in every group."""
    return tuple(
        entry
        for window, entries in zip(windows, groups, strict=True)
        for entry in entries[seen_from(window, len(entries) - 1) :]
    )


def _told(seen: int, state: State | None) -> int:
    """What a row tells of the entries that it sees, and of its state where there is one."""
    return seen if state is None else hash((seen, state))


def pick(logits: int, key: int, vocab: int) -> int:
    return hash((logits, key)) % vocab


def reference(
    prompt: list[int],
    key: int,
    vocab: int,
    total: int,
    ends: frozenset[int] = frozenset(),
    windows: Windows = (None,),
    states: bool = False,
) -> tuple[list[int], list[int]]:
    """(output tokens, logits of each prompt position) of a sequence run alone, uncached.

    ``states``: what a row tells depends on a state, too.
    """
    tokens, state = list(prompt), NOTHING
    groups: list[list[Entry]] = [[] for _ in windows]
    rows: list[int] = []
    while len(tokens) < total:
        for position in range(len(groups[0]), len(tokens)):
            for group, (window, entries) in enumerate(zip(windows, groups, strict=True)):
                before = _before(entries, window, position, group)
                entries.append(_entry(before, tokens[position], position, group))
            state = after(state, tokens[position])
            row = _told(hash(_visible(groups, windows)), state if states else None)
            if position < len(prompt):
                rows.append(row)
        tokens.append(pick(row, key, vocab))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :], rows


def as_hidden(rows: list[int]) -> NDArray[np.float64]:
    """Hashes of rows as hidden states of one component, of which sums are exact."""
    return np.array([[row % 2**20] for row in rows], np.float64).reshape(-1, 1)


class ToldPrefixes(PrefixCache):
    """Remembers of which tokens every key is."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.tokens_of: dict[bytes, list[int]] = {}

    def _extend_keys(self, table: BlockTable, tokens: array[int], count: int) -> None:
        known = len(table.keys)
        super()._extend_keys(table, tokens, count)
        for i in range(known, count):
            self.tokens_of[table.keys[i]] = tokens[: (i + 1) * self._block_size].tolist()


class ToldCache(KvCache):
    """Can compare what is found with the tokens of its key."""

    def __init__(self, num_blocks: int, block_size: int, **options: Any) -> None:
        super().__init__(num_blocks, block_size, **options)
        self._prefixes = self.told = ToldPrefixes(
            self._index, self.windows, block_size, self._states
        )

    def check_content(self, memory: dict[int, Entry]) -> None:
        """Every block that can be found holds what its key says, entry by entry."""
        for block in self._index.blocks():
            key, group = self._index._keys[block], self._index.group(block)
            tokens = self.told.tokens_of[key]
            assert min(tokens) >= 0, "a key of a token that is not known"
            window, entries = self.windows[group], list[Entry]()
            for position, token in enumerate(tokens):
                before = _before(entries, window, position, group)
                entries.append(_entry(before, token, position, group))
            first = block * self.block_size
            held = [memory.get(slot) for slot in range(first, first + self.block_size)]
            assert held == entries[-self.block_size :], f"block {block} is found for what it is not"

    def check_states(self, memory: dict[int, State]) -> None:
        """Every state that can be found has seen what its key says."""
        if self._states is None:
            return
        for slot in self._states._index.blocks():
            key = self._states._index._keys[slot]
            state = NOTHING
            for token in self.told.tokens_of[key]:
                state = after(state, token)
            assert memory[slot] == state, f"state {slot} is found for what it is not"


def resolved(step: StepInput, previous: list[int]) -> StepInput:
    """The step with every placeholder replaced by what the step before it sampled."""
    known = [previous[~token] if token < 0 else token for token in step.token_ids.tolist()]
    return replace(step, token_ids=np.array(known, np.int32))


def moved(memory: dict[int, Entry], moves: list[tuple[int, int]]) -> dict[int, Entry]:
    """The memory after ``StepInput.slot_moves``."""
    memory = dict(memory) if moves else memory
    for source, target in moves:
        memory[target] = memory[source]
    return memory


class FakeModel:
    """Runs steps over a memory of slots; returns a hash for each selected row.

    Sequences run in a random order, one after another, so that reading what another writes in the
    same step does not go unnoticed.
    """

    def __init__(
        self,
        block_size: int,
        seed: int = 0,
        windows: Windows = (None,),
        states: FakeStates | None = None,
    ) -> None:
        self.block_size = block_size
        self.states = states
        self.windows = windows
        self.memory: dict[int, Entry] = {}
        self.random = random.Random(seed)

    def run(self, step: StepInput) -> list[int]:
        size = self.block_size
        self.memory = moved(self.memory, step.slot_moves.tolist())
        for source, target in step.block_copies.tolist():
            for offset in range(size):
                if source * size + offset in self.memory:
                    self.memory[target * size + offset] = self.memory[source * size + offset]
        if self.states is not None:
            self.states.begin(step)
        selected = [*step.logit_rows.tolist(), *step.hidden_rows.tolist()]
        wanted = set(selected)
        assert len(wanted) == len(selected), "a row is selected twice"
        logits: dict[int, int] = {}
        order = list(range(step.num_sequences))
        self.random.shuffle(order)
        slots = [slot for tables in step.groups for slot in tables.slots.tolist()]
        assert len(set(slots)) == len(slots), "a slot is written twice"
        assert len(slots) == step.num_tokens * len(self.windows)
        for s in order:
            rows = range(int(step.query_starts[s]), int(step.query_starts[s + 1]))
            start = int(step.context_lens[s]) - len(rows)
            parents = list(range(-1, len(rows) - 1))
            if len(step.tree_parents):
                parents = step.tree_parents[rows.start : rows.stop].tolist()
            behind = None if self.states is None else self.states.run(step, s)
            pasts = {-1: [self._cached(step, s, group) for group in range(len(self.windows))]}
            for row, parent in zip(rows, parents, strict=True):
                position = int(step.positions[row])
                assert position == (start if parent < 0 else step.positions[rows[parent]] + 1)
                pasts[row - rows.start] = self._write(step, row, pasts[parent])
                if row in wanted:
                    seen = [
                        [entry for entry in past if entry[1] >= seen_from(window, position)]
                        for past, window in zip(pasts[row - rows.start], self.windows, strict=True)
                    ]
                    told = self.seen(tuple(entry for past in seen for entry in past))
                    state = None if behind is None else behind[row - rows.start]
                    logits[row] = _told(told, state)
        return [logits[row] for row in selected]

    def _cached(self, step: StepInput, sequence: int, group: int) -> list[Entry]:
        """What the group's layers see of what precedes a sequence's rows."""
        size, tables, window = self.block_size, step.groups[group], self.windows[group]
        first, last = int(step.query_starts[sequence]), int(step.query_starts[sequence + 1])
        ids = tables.block_ids[tables.block_starts[sequence] : tables.block_starts[sequence + 1]]
        blocks, context = ids.tolist(), int(step.context_lens[sequence])
        assert len(blocks) * size >= context
        slots = [blocks[p // size] * size + p % size for p in range(context)]
        start = context - (last - first)
        assert tables.slots[first:last].tolist() == slots[start:]
        seen = slots[seen_from(window, start) : start]
        return [self.memory[slot] for slot in seen]

    def _write(self, step: StepInput, row: int, pasts: list[list[Entry]]) -> list[list[Entry]]:
        """The row's entry in every group, behind what its parent sees there."""
        token, position = int(step.token_ids[row]), int(step.positions[row])
        written = []
        for group, past in enumerate(pasts):
            before = _before(past, self.windows[group], position, group)
            entry = _entry(before, token, position, group)
            self.memory[int(step.groups[group].slots[row])] = entry
            written.append([*past, entry])
        return written

    def seen(self, entries: tuple[Entry, ...]) -> int:
        """What a row tells of the tokens it sees and itself."""
        return hash(entries)


@dataclass
class Loop:
    """Scheduler and fake model, stepped with every check that can be made on the way.

    With ``ahead``, a step runs only after the next has been scheduled and submitted.
    """

    scheduler: Scheduler
    vocab: int
    ahead: bool = False
    model: FakeModel = field(init=False)
    outputs: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    finished: dict[tuple[str, int], SequenceState] = field(default_factory=dict)
    prompt_rows: dict[str, dict[int, int]] = field(default_factory=dict)
    embeddings: dict[str, bytes] = field(default_factory=dict)
    pooled: Embeddings = field(default_factory=Embeddings)
    steps: int = 0
    rows_too_many: int = 0
    """Samples of sequences that had ended when they came."""
    in_flight: tuple[ScheduledStep, StepInput] | None = None
    previous: list[int] = field(default_factory=list)
    """What the step that ran last sampled."""

    def __post_init__(self) -> None:
        cache = self.scheduler.cache
        _, slots = cache.num_states
        states = FakeStates(slots) if slots else None
        self.model = FakeModel(cache.block_size, windows=cache.windows, states=states)

    def step(self, between: object = None) -> list[SequenceUpdate] | None:
        """One step; ``between`` is called between schedule and update. None: nothing to do."""
        step = self.scheduler.schedule()
        self.scheduler.check_integrity()
        current = None
        if step is not None:
            self._check(step)
            current = (step, build_step_input(step, self.scheduler.cache.block_size))
            if not self.ahead:
                assert current[1].token_ids.min() >= 0
        elif self.in_flight is None:
            assert not self.scheduler.has_work, "work, but no step"
            return None
        if self.ahead:
            if step is not None:
                self.scheduler.submitted(step)
                self.scheduler.check_integrity()
            current, self.in_flight = self.in_flight, current
        if current is None:
            if callable(between):
                between()
            return []
        return self._run(*current, between)

    def run(self, limit: int = 100_000) -> None:
        while self.step() is not None:
            assert self.steps < limit, "no end in sight"

    def _run(self, step: ScheduledStep, arrays: StepInput, between: object) -> list[SequenceUpdate]:
        logits = self.model.run(resolved(arrays, self.previous))
        assert step.num_logits == sum(e.num_logits for e in step.sequences)
        assert step.num_hidden == sum(e.num_hidden for e in step.sequences)
        assert len(logits) == step.num_logits + step.num_hidden
        self.pooled.give_rows(step, as_hidden(logits[step.num_logits :]))
        row = 0
        for each in step.sequences:
            sequence = each.sequence
            row += each.num_logits
            for back in range(each.num_logits, 1 if each.samples else 0, -1):
                position = each.start + each.num_tokens - back
                rows = self.prompt_rows.setdefault(sequence.request_id, {})
                assert position not in rows, "a prompt row was given twice"
                rows[position] = logits[row - back]
        drawn = zip(step.samples, step.sample_rows, strict=True)
        self.previous = [pick(logits[r], s.key, self.vocab) for s, r in drawn]
        if callable(between):
            between()
        self.rows_too_many += sum(s.finish_reason is not None for s in step.samples)
        updates = self.scheduler.update(step, [[token] for token in self.previous])
        pooled = [e.sequence for e in step.sequences if e.sequence.pooling is not None]
        sequences = {(s.request_id, s.index): s for s in (*step.samples, *pooled)}
        for update in updates:
            name = (update.request_id, update.index)
            assert name not in self.finished, "output after the end"
            assert update.stop_reason == sequences[name].stop_reason
            assert update.finish_reason is sequences[name].finish_reason
            self.outputs.setdefault(name, []).extend(update.token_ids)
            if update.finish_reason is not None:
                self.finished[name] = sequence = sequences[name]
                if sequence.pooling is not None:
                    self.embeddings[sequence.request_id] = self.pooled.vector(sequence)
        self.scheduler.check_integrity()
        if isinstance(self.scheduler.cache, ToldCache):
            self.scheduler.cache.check_content(self.model.memory)
            if self.model.states is not None:
                self.scheduler.cache.check_states(self.model.states.memory)
        self.steps += 1
        return updates

    def _check(self, step: ScheduledStep) -> None:
        assert 0 < step.num_tokens <= self.scheduler.max_num_batched_tokens
        assert step.num_tokens == sum(e.num_tokens for e in step.sequences)
        assert len({e.sequence for e in step.sequences}) == len(step.sequences)
        cache = self.scheduler.cache
        for entry in step.sequences:
            first = entry.start // cache.block_size
            for blocks in entry.sequence.table.blocks:
                for block in blocks[first:]:
                    assert cache._pool.ref_counts[block] == 1, "a shared block would be written"
                    assert block not in cache._index, "a findable block would be written"
