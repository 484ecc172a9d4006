"""What a proposer is asked, and what it answers."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from penstock.engine.request import Sequence
    from penstock.engine.scheduled import ScheduledStep
    from penstock.interface.step import StepResult


class Draft(msgspec.Struct, frozen=True, gc=False):
    """Tokens that may follow the known ones of a sequence, of which each was decided for certain.

    A chain, or a tree of alternatives. The model verifies it by drawing, at each position, what
    plain decoding would draw, and by going on while that is in the draft
    (:mod:`penstock.speculate.verify`).
    """

    token_ids: array[int]
    """At least one; the first may follow the sequence's last known token."""
    group: int = 0
    """Below ``Proposer.groups``. Drafts of a group are believed to be accepted about as often."""
    parents: array[int] | None = None
    """Of each token, the index of the one that it follows, before it; -1: the last known token.
    Those of one parent differ. None: a chain, each follows the one before it."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def depth(self) -> int:
        """Tokens of the longest path: more cannot be accepted."""
        if self.parents is None:
            return len(self.token_ids)
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + depths[parent] if parent >= 0 else 1)
        return max(depths)

    def cut(self, count: int) -> Draft:
        """Its first ``count`` tokens."""
        if count >= len(self.token_ids):
            return self
        if self.parents is None:
            return Draft(self.token_ids[:count], self.group)
        return draft_tree(self.token_ids[:count], self.parents[:count], self.group)

    def child(self, node: int, token: int) -> int:
        """The index of ``token`` where it follows ``node``, -1 being the last known one; -1: it
        does not."""
        tokens, parents = self.token_ids, self.parents
        if parents is None:
            node += 1
            return node if node < len(tokens) and tokens[node] == token else -1
        for child in range(node + 1, len(tokens)):
            if parents[child] == node and tokens[child] == token:
                return child
        return -1

    def following(self, node: int) -> Seq[int]:
        """The tokens that follow ``node``."""
        if self.parents is None:
            return self.token_ids[node + 1 : node + 2]
        return [t for t, parent in zip(self.token_ids, self.parents, strict=True) if parent == node]

    def path(self, tokens: Seq[int]) -> Seq[int]:
        """The indices of those of ``tokens`` that are in the draft from its start, in a row."""
        nodes: list[int] = []
        node = -1
        for token in tokens:
            node = self.child(node, token)
            if node < 0:
                break
            nodes.append(node)
        return nodes


def draft_tree(token_ids: array[int], parents: array[int], group: int = 0) -> Draft:
    """A draft of these tokens and parents, known as a chain if it is one."""
    if all(parent == i for i, parent in enumerate(parents, -1)):
        return Draft(token_ids, group)
    return Draft(token_ids, group, parents)


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
