"""Drafts, and the protocols of the proposers that make them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from numpy.typing import NDArray

from penstock.scheduler.draft import Draft

if TYPE_CHECKING:
    from penstock.scheduler.output import ScheduledStep
    from penstock.scheduler.sequence import SequenceState


class Wanted(NamedTuple):
    """A decoding sequence and the maximum number of tokens to draft for it."""

    sequence: SequenceState
    most: int


class HiddenRows(NamedTuple):
    """The rows of a step's hidden states that belong to accepted tokens of a sequence."""

    sequence: SequenceState
    first: int
    """Position of the token of the first row."""
    rows: Sequence[int]
    """Indices into ``StepOutcome.features``, one for each position from ``first`` on."""


class Proposer(Protocol):
    """Makes drafts for sequences. Not thread-safe.

    Drafts change how many steps an output takes and never the output, so a proposer may keep any
    state, but it must not keep many ended sequences alive for long.
    """

    kinds: int
    cheap: bool
    """Whether drafting costs next to nothing compared with verifying. Then drafts are made first
    and cut to the best length; else the length is chosen first, and nothing is made if it is 0."""

    steady: bool
    """Whether the last call only drafted, and read no prompt, so that its time is typical."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        """Return, for each of ``wanted``, a draft of at most ``most`` tokens or None."""
        ...

    def reset(self) -> None:
        """Forget what outlives its request: cached prefixes, and texts of requests that ended.

        What runs is not disturbed.
        """
        ...

    def check_integrity(self) -> None:
        """Raise AssertionError if the proposer's state is inconsistent."""
        ...

    def close(self) -> None:
        """Release weights and caches."""
        ...


@runtime_checkable
class HiddenReader(Proposer, Protocol):
    """A proposer that drafts from the target's hidden states."""

    trees: Collection[int]
    """Kinds of drafts that may be trees."""
    reads_all: bool
    """Whether it needs the hidden states of all computed tokens, or only of those from which a
    token is sampled."""

    def observe(
        self, step: ScheduledStep, tokens: Sequence[list[int]], features: NDArray[Any]
    ) -> None:
        """Take note of a finished step of the target; ``step.samples[i]`` got ``tokens[i]``.

        :func:`~penstock.speculate.hidden_states.hidden_rows` assigns the rows of ``features``
        (``StepOutcome.features``), which are valid until the next step. Tokens found in the prefix
        cache have no rows. Another step may be in flight, with placeholders for its tokens.
        """
        ...
