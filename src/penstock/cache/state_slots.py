"""The books of state slots: which sequence has which (``StepInput.states``), and which are kept.

Layers that keep a state of a sequence in place of its keys and values have it in a *slot*, one for
all of them. There are at least as many slots as sequences that run at once, so one that runs has
exactly one, gets it when it gets its first blocks, and never waits for it. What is spare holds
*snapshots*: states behind a prefix of some sequence, without which its blocks of keys and values
are of no use. The policy, in full:

- A step stores states at borders of blocks in passing (``StateTables.snapshots``): at the last
  border before the last token that is known when a sequence begins; every ``interval`` tokens, of
  which the keys and values take as many bytes, or further apart, so that a long prompt takes no
  more than its sequence's share of what is spare; where a prefix was found in blocks and not in
  states; and, as a sequence decodes, at each border, in the place of the one before, so that a long
  answer drives out one snapshot and not all.
- A snapshot can be found, by the key of the blocks that it has seen, once its step was executed.
- When no blank slot is free, the least recently used snapshot makes room. As many as wait to be
  found are never more than what is spare, so that a sequence that begins finds a slot; of a step's
  snapshots those every ``interval`` tokens are left out first.
- A sequence that begins behind a snapshot has a copy of it, made before all else in its first step;
  so has a forked sequence of its parent's state. So a slot is written by its one owner's steps
  alone, and changes hands at once, while steps in flight use it: steps run in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.cache.pool import BlockPool
from penstock.cache.prefix import Key, PrefixIndex

StateCopy = tuple[int, int]
"""Source and target slot of a copy."""

Snapshot = tuple[int, int]
"""Tokens seen, and slot."""


@dataclass(slots=True)
class StateHold:
    """What a table holds of the slots."""

    slot: int
    seen: int
    """Tokens in the slot's state, behind all steps that were composed."""
    last: int
    """The last border before the last token that was known when the table began."""
    interval: int
    """Tokens from one of its prompt's snapshots to the next."""
    branch: int = 0
    """The border up to which blocks were found, and no state."""
    pending: list[Snapshot] = field(default_factory=list)
    """Snapshots of steps that were composed, which cannot be found yet; ascending."""
    rolling: tuple[Key, int] | None = None
    """The last snapshot behind ``last`` that could be found."""
    due_at: int = 0
    """No border below this one is wanted."""


@dataclass(frozen=True)
class StateLimits:
    """How many state slots there are, and how often a prompt's states are kept."""

    slots: int
    sequences: int
    """Number of sequences that may run at once, at most ``slots``."""
    interval: int
    """Tokens from one snapshot of a prompt to the next: whole blocks."""


class StateSlots:
    """Hands out slots, finds snapshots, and keeps the copies that the next step makes."""

    def __init__(self, limits: StateLimits, block_size: int, keep: bool) -> None:
        """``keep``: whether there are snapshots."""
        if limits.slots < limits.sequences:
            raise ValueError(f"{limits.sequences} sequences cannot share {limits.slots} states")
        if limits.interval < 1 or limits.interval % block_size:
            raise ValueError(f"states are kept at borders of blocks, not at {limits.interval}")
        self.num_slots = limits.slots
        self._interval, self._block_size = limits.interval, block_size
        self._spare = limits.slots - limits.sequences if keep else 0
        self._share = max(self._spare // limits.sequences, 1)
        self._pool = BlockPool(limits.slots)
        self._index = PrefixIndex()
        self._num_pending = 0
        self._found: set[int] = set()
        """Slots of snapshots behind which a sequence has begun."""
        self._copies: list[StateCopy] = []

    @property
    def num_used(self) -> int:
        return self._pool.num_used

    def find(self, key: Key) -> int | None:
        """The slot of the state behind the blocks of ``key``."""
        return self._index.find(key)

    def begin(
        self, known: int, seen: int = 0, snapshot: int | None = None, branch: int = 0
    ) -> StateHold:
        """A slot for a table of ``known`` tokens, of which a ``snapshot`` has seen some, or from
        zeros. Raises IndexError where more sequences run than there are slots for."""
        last = (known - 1) // self._block_size * self._block_size
        interval = self._interval * max(-(-known // (self._interval * self._share)), 1)
        if snapshot is None:
            return StateHold(self._take(), 0, last, interval, branch)
        self._pool.share(snapshot)
        if not self._pool.num_free:  # the snapshot itself is what is left
            self._forget(snapshot)
            return StateHold(snapshot, seen, last, interval, branch)
        self._found.add(snapshot)
        slot = self._take()
        self._copies.append((snapshot, slot))
        self._pool.release(snapshot, keep=True)
        return StateHold(slot, seen, last, interval, branch)

    def fork(self, parent: StateHold) -> StateHold:
        """A slot that is the parent's from the next step on: that copies it before all else."""
        slot = self._take()
        self._copies.append((parent.slot, slot))
        return StateHold(slot, parent.seen, parent.last, parent.interval)

    def compose(self, reached: Sequence[tuple[StateHold, int]]) -> list[list[Snapshot]]:
        """Note that a step brings the state of each hold to so many tokens; returns the snapshots
        of each that it stores on the way, ascending.

        Where fewer can wait to be found than are wanted, those at intervals are left out first, of
        all of the step's prompts.
        """
        taken: list[list[Snapshot]] = [[] for _ in reached]
        filling: list[tuple[int, int]] = []
        for number, (hold, end) in enumerate(reached):
            seen, hold.seen = hold.seen, end
            if end < hold.due_at or not self._spare:
                continue
            for border in self._ends(hold, seen, end):
                self._store(border, taken[number])
            filling += [(number, border) for border in self._within(hold, seen, end)]
            hold.due_at = min(self._next(hold, end))
        for number, border in filling:
            self._store(border, taken[number])
        for (hold, _), snapshots in zip(reached, taken, strict=True):
            if snapshots:
                snapshots.sort()
                hold.pending += snapshots
        return taken

    def publish(self, hold: StateHold, keys: Sequence[Key], end: int, private: bool) -> None:
        """Make snapshots of up to ``end`` tokens findable by the ``keys`` of their blocks: their
        steps were executed. ``private``: they are given up."""
        while hold.pending and hold.pending[0][0] <= end:
            border, slot = hold.pending.pop(0)
            self._num_pending -= 1
            key = None if private else keys[border // self._block_size - 1]
            if key is None or self._index.find(key) is not None:
                self._pool.release(slot, keep=False)
                continue
            self._index.publish(key, slot)
            self._pool.release(slot, keep=True)
            if border > hold.last:
                self._roll(hold, key, slot)

    def release(self, hold: StateHold) -> None:
        """Take back what a table holds. Its snapshots that can be found stay."""
        for _, slot in hold.pending:
            self._num_pending -= 1
            self._pool.release(slot, keep=False)
        self._pool.release(hold.slot, keep=False)

    def reset(self) -> None:
        """Forget all snapshots. Copies that the next step makes are kept: they are of states that
        sequences have, and until they are taken no step writes where they read."""
        self._index.clear()
        self._found.clear()
        self._pool.forget_kept()

    def take_copies(self) -> list[StateCopy]:
        """The copies that the step being composed makes, in order; they are its own from now on."""
        copies, self._copies = self._copies, []
        return copies

    def check_integrity(self, holds: Iterable[StateHold]) -> None:
        """Raise AssertionError unless owners, counts, free lines and index agree."""
        self._pool.check_integrity()
        self._index.check_integrity()
        owners, pending = [0] * self.num_slots, 0
        for hold in holds:
            pending += len(hold.pending)
            for slot in (hold.slot, *(slot for _, slot in hold.pending)):
                owners[slot] += 1
                assert slot not in self._index, f"state slot {slot} is written, and found"
        assert owners == self._pool.ref_counts, "a state slot is lost, or has two owners"
        assert pending == self._num_pending <= self._spare
        assert set(self._index.blocks()) == set(self._pool.kept()), "kept states are not found"
        assert self._found <= set(self._index.blocks())

    def _ends(self, hold: StateHold, seen: int, end: int) -> Iterable[int]:
        """The borders behind ``seen`` and up to ``end`` at which what is known of a sequence ends:
        its prompt, what it has in common with others, or its answer so far."""
        borders = {hold.last, hold.branch}
        if end > hold.last:
            borders.add(end - end % self._block_size)
        return sorted(border for border in borders if seen < border <= end)

    def _within(self, hold: StateHold, seen: int, end: int) -> Iterable[int]:
        """The borders at intervals, those of :meth:`_ends` left out."""
        first = seen - seen % hold.interval + hold.interval
        ends = set(self._ends(hold, seen, end))
        return (border for border in range(first, end + 1, hold.interval) if border not in ends)

    def _store(self, border: int, taken: list[Snapshot]) -> None:
        """Take a slot for a snapshot, if one more may wait to be found."""
        if self._num_pending < self._spare:
            self._num_pending += 1
            taken.append((border, self._take()))

    def _next(self, hold: StateHold, end: int) -> Iterator[int]:
        """Borders behind ``end``, the next that is wanted among them."""
        yield end - end % hold.interval + hold.interval
        yield from (border for border in (hold.last, hold.branch) if border > end)
        if end >= hold.last:
            yield end - end % self._block_size + self._block_size

    def _roll(self, hold: StateHold, key: Key, slot: int) -> None:
        """Put a snapshot in the place of the one before, if that is still there, and nobody has
        begun behind it."""
        before, hold.rolling = hold.rolling, (key, slot)
        if before is not None and self._index.find(before[0]) == before[1]:
            old = before[1]
            if old not in self._found:
                self._index.drop(old)
                self._pool.blank(old)

    def _take(self) -> int:
        slot = self._pool.take()
        self._forget(slot)
        return slot

    def _forget(self, slot: int) -> None:
        self._index.drop(slot)
        self._found.discard(slot)
