"""Steps that only decode, taken in at once: the books end as they would after one step at a time.

Simulation spends most of its steps on these (penstock.simulate): the same sequences run, each gets
a token, nobody is admitted, and nobody ends but in the last of these steps. Then a step changes a
sequence's books only where it begins a block, fills one, or leaves one behind a window. These
events are visited in the order in which the steps would come to them, so even the numbers of blocks
are the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

from penstock.cache.kv_cache import BlockCopy, KvCache
from penstock.interface.messages import FinishReason
from penstock.scheduler.sequence import SequenceState

_BEFORE, _AFTER = 0, 1
"""A step takes blocks before it runs; after it, it publishes full ones and ends sequences."""
_PUBLISH, _END = 0, 1
_Event = tuple[int, int, int, int]
"""The step, whether before or after it, the place of the sequence, and what happens after it."""


class SteadySteps:
    """Decodes the running sequences of one scheduler, several steps at once."""

    def __init__(
        self,
        cache: KvCache,
        running: Sequence[SequenceState],
        finish: Callable[[SequenceState], None],
    ) -> None:
        """``finish`` ends a sequence that has a reason to end."""
        self._cache = cache
        self._running = running
        self._finish = finish

    def most(self, limit: int) -> int:
        """Return how many of the next ``limit`` steps only decode a token of each running sequence,
        up to the first that ends one; maybe fewer than that where windows give blocks back
        meanwhile."""
        if self._cache.keeps_states:
            return 0
        steps = limit
        for sequence in self._running:
            known = len(sequence.token_ids)
            if (
                known - sequence.num_computed != 1
                or sequence.siblings
                or sequence.index
                or sequence.pooling is not None
                or sequence.matcher is not None
                or sequence.wants_prompt_rows
                or sequence.ending_token_ids
            ):
                return 0
            left = sequence.max_total_tokens - known
            if left < steps:
                steps = left
        if not self._running or steps < 1:
            return 0
        return self._fitting(steps)

    def take(self, steps: int, token: int) -> list[SequenceState]:
        """Advance every running sequence by so many steps, at most those of :meth:`most`, each of
        which samples ``token``; returns those that end with the last."""
        cache, running = self._cache, self._running[:]
        events: list[_Event] = []
        ended: list[SequenceState] = []
        drawn = array("i", [token]) * steps
        for place, sequence in enumerate(running):
            start, table = sequence.num_computed, sequence.table
            sequence.token_ids.extend(drawn)
            if table.writable < start + steps:
                events.append((max(table.writable - start + 1, 1), _BEFORE, place, 0))
            if table.due_at <= start + steps:
                events.append((max(table.due_at - start, 1), _AFTER, place, _PUBLISH))
            if len(sequence.token_ids) >= sequence.max_total_tokens:
                ended.append(sequence)
                events.append((steps, _AFTER, place, _END))
            else:
                table.num_committed = start + steps
            sequence.num_computed = start + steps
        heapify(events)
        copies: list[BlockCopy] = []
        while events and events[0][0] <= steps:
            step, when, place, kind = events[0]
            sequence = running[place]
            start, table = sequence.num_computed - steps, sequence.table
            end = start + step
            if when == _BEFORE:
                fits = cache.extend(table, end - 1, end, copies)
                assert fits, "a step that only decodes lacks a block"
                assert not copies, "a sequence without siblings shares its last block"
                following = table.writable - start + 1
            elif kind == _PUBLISH:
                cache.publish(table, sequence.token_ids, end)
                following = table.due_at - start
            else:
                sequence.finish_reason = FinishReason.LENGTH
                self._finish(sequence)
                following = steps + 1
            assert following > step, "an event repeats itself"
            heapreplace(events, (following, when, place, kind))
        return ended

    def _fitting(self, steps: int) -> int:
        """The most of ``steps`` for which blocks suffice if none is given back."""
        cache = self._cache
        size, groups = cache.block_size, len(cache.windows)
        free = cache.num_free_blocks // groups
        if len(self._running) * (steps // size + 1) <= free:
            return steps
        held = [(each.num_computed, each.table.num_places) for each in self._running]

        def taken(count: int) -> int:
            return sum(max(-(-(computed + count) // size) - places, 0) for computed, places in held)

        if taken(steps) <= free:
            return steps
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if taken(middle) <= free else (low, middle)
        return low
