"""The books of state slots: which sequence has which (``StepInput.states``).

Layers that keep a state of a sequence in place of its keys and values have it in a *slot*, one for
all of them. There are at least as many slots as sequences that run at once, so one that runs has
exactly one, gets it when it gets its first blocks, and never waits for it.

Slots change hands at once, while steps in flight use them: steps run in order, and a slot's new
owner begins from zeros, or from a copy that is made before anything else in its first step.
"""

from __future__ import annotations

StateCopy = tuple[int, int]
"""Source and target slot of a copy."""

NO_STATE = -1
"""What stands for the slot of a table that has none."""


class StateSlots:
    """Hands out the slots ``0 .. num_slots - 1``, and keeps the copies that the next step makes."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._copies: list[StateCopy] = []

    @property
    def num_used(self) -> int:
        return self.num_slots - len(self._free)

    def take(self) -> int:
        """A free slot, whose content means nothing. Raises IndexError when there is none, which is
        where more sequences run than there are slots."""
        return self._free.pop()

    def fork(self, parent: int) -> int:
        """A slot that is ``parent``'s from the next step on: that copies it before all else."""
        child = self.take()
        self._copies.append((parent, child))
        return child

    def release(self, slot: int) -> None:
        """Take a slot back from its only owner."""
        self._free.append(slot)

    def take_copies(self) -> list[StateCopy]:
        """The copies that the step being composed makes, in order; they are its own from now on."""
        copies, self._copies = self._copies, []
        return copies

    def check_integrity(self, owned: list[int]) -> None:
        """Raise AssertionError unless every slot is free or one of the ``owned``, once."""
        slots = sorted([*self._free, *owned])
        assert slots == list(range(self.num_slots)), "a state slot is lost, or has two owners"
