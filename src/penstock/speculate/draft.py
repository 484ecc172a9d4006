"""What a proposer is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from penstock.scheduler.draft import Draft

if TYPE_CHECKING:
    from penstock.interface.step import StepResult
    from penstock.scheduler.output import ScheduledStep
    from penstock.scheduler.sequence import Sequence


class Wanted(NamedTuple):
    """A sequence that decodes, and how many tokens may be drafted for it."""

    sequence: Sequence
    most: int


class Told(NamedTuple):
    """Where a step's hidden states are those of tokens that are now known to be a sequence's."""

    sequence: Sequence
    first: int
    """The position of the first of them."""
    rows: Seq[int]
    """Of the step's hidden states, one for each position from ``first`` on."""


class Proposer(Protocol):
    """Drafts for sequences. Not thread-safe.

    What it proposes changes how many steps an output takes and never the output, so it may keep
    what state it likes, about sequences too; it must not keep many of them alive for long.
    """

    groups: int
    cheap: bool
    """A draft costs next to nothing beside the row of the step that verifies it. Then it is made
    first and cut to the length that pays; else it is not made unless it pays."""

    steady: bool
    """Whether the last proposals took what they always take: no prompt was read for them."""

    def propose(self, wanted: Seq[Wanted]) -> list[Draft | None]:
        """A draft of at most ``most`` tokens for each of ``wanted``, or None where it has none."""
        ...

    def check_integrity(self) -> None:
        """Raise AssertionError unless the proposer's own books agree."""
        ...

    def close(self) -> None:
        """Release memory."""
        ...


@runtime_checkable
class HiddenReader(Proposer, Protocol):
    """A proposer that drafts by what the target made of the text."""

    trees: Collection[int]
    """The groups whose drafts may be trees."""
    reads_all: bool
    """It reads the hidden states of every token that is computed; else of those alone from which
    the next one is drawn."""

    def observe(self, step: ScheduledStep, tokens: Seq[list[int]], result: StepResult) -> None:
        """A step of the target was taken in, with ``tokens[i]`` for ``step.samples[i]``.

        :func:`~penstock.speculate.told.told_of` says what of ``result``, which lives until the next
        step, is whose. Tokens that were found in the cache are not computed and not told.
        """
        ...
