"""What a proposer is asked, and what it answers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from penstock.engine.request import Sequence


class Draft(msgspec.Struct, frozen=True, gc=False):
    """Tokens that may follow the known ones of a sequence, of which each was decided for certain.

    The model verifies it by drawing, at each position, what plain decoding would draw, and by
    going on while that is the draft (:mod:`penstock.speculate.verify`).
    """

    token_ids: array[int]
    """At least one; the first may follow the sequence's last known token."""
    group: int = 0
    """Below ``Proposer.groups``. Drafts of a group are believed to be accepted about as often."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def cut(self, count: int) -> Draft:
        """Its first ``count`` tokens."""
        if count >= len(self.token_ids):
            return self
        return Draft(self.token_ids[:count], self.group)


class Wanted(NamedTuple):
    """A sequence that decodes, and how many tokens may be drafted for it."""

    sequence: Sequence
    most: int


class Proposer(Protocol):
    """Drafts for sequences. Not thread-safe.

    What it proposes changes how many steps an output takes and never the output, so it may keep
    what state it likes, about sequences too; it must not keep them alive for long.
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
