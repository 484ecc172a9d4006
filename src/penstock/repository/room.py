"""The memory that the models of a repository share: who gets some next, and who leaves for it."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.repository.slot import HOLDS, Slot, State


class Room:
    """A budget of memory over the slots of models.

    For a model that does not fit, the least recently used of those without requests leave, and only
    once that is enough. If it is not enough for ``patience_s`` seconds, the least recently used of
    the others are closed, too.
    """

    def __init__(self, slots: Mapping[str, Slot], budget: int, patience_s: float) -> None:
        """``slots`` are those of all models, whoever changes them."""
        self._slots = slots
        self.budget = budget
        self._patience_s = patience_s

    @property
    def held(self) -> int:
        """Bytes of all models that are in memory, or on their way in or out."""
        return sum(slot.need or 0 for slot in self._slots.values() if slot.state in HOLDS)

    @property
    def next(self) -> Slot | None:
        """The model that gets memory next."""
        queued = (slot for slot in self._slots.values() if slot.state == "queued")
        return min(queued, key=lambda slot: slot.ticket, default=None)

    @property
    def impatient_at(self) -> float:
        """When those that are in use are closed for the next one; infinity where none waits."""
        head = self.next
        return float("inf") if head is None else head.queued_at + self._patience_s

    def make(self, head: Slot, now: float) -> None:
        """Close what must leave for the first model of the queue."""
        assert head.need is not None
        short = head.need - (self.budget - self.held) - self._total("unloading")
        idle = sum(slot.need or 0 for slot in self._slots.values() if slot.is_idle)
        if short > idle and now >= self.impatient_at:
            leaving = idle + self._total("closing")
            for slot in self._least_recently_used():
                if short <= leaving:
                    break
                if slot.open:
                    slot.close(for_room=True)
                    leaving += slot.need or 0
        if short <= idle:
            self._take_idle(short)

    def make_up(self) -> None:
        """Close idle ones where a model takes more than was known before."""
        if self.held > self.budget:
            self._take_idle(self.held - self.budget - self._total("unloading"))

    def _take_idle(self, short: int) -> None:
        for slot in self._least_recently_used():
            if short <= 0:
                return
            if slot.is_idle:
                slot.close()
                short -= slot.need or 0

    def _least_recently_used(self) -> list[Slot]:
        ready = (slot for slot in self._slots.values() if slot.state == "ready")
        return sorted(ready, key=lambda slot: slot.used_at)

    def _total(self, state: State) -> int:
        return sum(slot.need or 0 for slot in self._slots.values() if slot.state == state)
