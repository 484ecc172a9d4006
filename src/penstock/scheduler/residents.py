"""Which adapter is in which of the executor's slots."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock.interface.adapters import Adapter
from penstock.scheduler.sequence import SequenceState

AdapterLoad = tuple[int, Adapter]
"""A slot, and the adapter that is written into it before a step."""


class Residents:
    """Gives an adapter a slot when the first sequence that uses it begins to run.

    It stays there until another one needs the slot: then of the slots that no running sequence uses
    the one goes whose adapter was longest not asked for. What is to be written is in ``loads``
    until it is taken for the next step.
    """

    def __init__(self, count: int) -> None:
        self._adapters: list[Adapter | None] = [None] * count
        self._asked = [0] * count
        """When each slot's adapter was last asked for, as numbers that rise."""
        self._time = 0
        self._loads: list[AdapterLoad] = []

    def resident(self, adapter: Adapter) -> int | None:
        """The slot that ``adapter`` is in."""
        for slot, resident in enumerate(self._adapters):
            if resident is not None and resident.digest == adapter.digest:
                return slot
        return None

    def longest_not_asked(self, but: Collection[int]) -> int | None:
        """The slot whose adapter was longest not asked for, ``but`` for these; None: there is no
        other."""
        slots = [slot for slot in range(len(self._adapters)) if slot not in but]
        return min(slots, key=self._asked.__getitem__, default=None)

    def put(self, slot: int, adapter: Adapter) -> None:
        """Let a sequence use ``adapter`` in a slot that it is in, or that nobody uses."""
        self._time += 1
        self._asked[slot] = self._time
        resident = self._adapters[slot]
        if resident is None or resident.digest != adapter.digest:
            self._adapters[slot] = adapter
            self._loads.append((slot, adapter))

    def take_loads(self) -> list[AdapterLoad]:
        """What is to be written before the step that is being composed, in this order."""
        loads, self._loads = self._loads, []
        return loads

    def check_integrity(self, running: Iterable[SequenceState]) -> None:
        """Raise AssertionError unless each running sequence's adapter is where it says."""
        there = [each.digest for each in self._adapters if each is not None]
        assert len(set(there)) == len(there), "an adapter is in two slots"
        for sequence in running:
            if sequence.adapter is None:
                assert sequence.adapter_slot < 0, "a sequence without adapter has a slot"
                continue
            assert sequence.adapter_slot >= 0, "a sequence with an adapter has no slot"
            resident = self._adapters[sequence.adapter_slot]
            assert resident is not None, "a slot is empty"
            assert resident.digest == sequence.adapter.digest, "a slot has another adapter"


class Claims:
    """Who gets a slot in one walk over the sequences that wait, in their turns.

    Where running sequences use all slots, an adapter waits, and those behind it pass. So that they
    do not pass for ever, it claims a slot, the one whose adapter was longest not asked for: nobody
    behind it begins to use that, so that it becomes free when those end that use it now. As long as
    it waits nobody asks for what is in the slot, so the next walk comes to the same claim.
    """

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._claimed: set[int] = set()
        self._waiting: set[str] = set()
        """The digests of adapters of which nobody else is let in."""

    def slot(
        self, adapter: Adapter, running: Iterable[SequenceState], joins: bool = False
    ) -> int | None:
        """The slot that a sequence with ``adapter`` may use; None: it waits for one. ``joins``:
        others of its request run, and wait for it, so that it takes nobody's turn."""
        slot = self._residents.resident(adapter)
        if joins and slot is not None:
            return slot
        if adapter.digest in self._waiting:
            return None
        if slot is None:
            slot = self._residents.longest_not_asked({each.adapter_slot for each in running})
            if slot is None:
                claim = self._residents.longest_not_asked(self._claimed)
                if claim is not None:
                    self._claimed.add(claim)
        if slot is None or slot in self._claimed:
            self._waiting.add(adapter.digest)
            return None
        return slot
