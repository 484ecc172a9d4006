"""Drafts, and the protocols of the proposers that make them."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from penstock.engine.request import Sequence
    from penstock.engine.scheduled import ScheduledStep
    from penstock.engine.step import StepResult


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A chain, or a tree of alternatives, of tokens that may follow a sequence.

    The proposer has decided each token, so the draft distribution is a point mass. The model
    verifies a draft by sampling at each position what plain decoding would sample, and goes on as
    long as that token is in the draft (:mod:`penstock.speculate.verify`).
    """

    token_ids: array[int]
    """One token or more, of which the first may follow the sequence's last known token."""
    group: int = 0
    """Class of drafts with similar acceptance, below ``Proposer.groups``."""
    parents: array[int] | None = None
    """Index of each token's parent, which precedes it; -1 stands for the last known token. Siblings
    differ. None means a chain, in which each token follows the one before it."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def depth(self) -> int:
        """Number of tokens on the longest path, which is the most that can be accepted."""
        if self.parents is None:
            return len(self.token_ids)
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + depths[parent] if parent >= 0 else 1)
        return max(depths)

    def cut(self, count: int) -> Draft:
        """Return the draft's first ``count`` tokens as a draft."""
        if count >= len(self.token_ids):
            return self
        if self.parents is None:
            return Draft(self.token_ids[:count], self.group)
        return draft_tree(self.token_ids[:count], self.parents[:count], self.group)

    def child(self, node: int, token: int) -> int:
        """Return the index of the child of ``node`` that is ``token``, or -1 if there is none.

        ``node`` -1 is the last known token.
        """
        tokens, parents = self.token_ids, self.parents
        if parents is None:
            node += 1
            return node if node < len(tokens) and tokens[node] == token else -1
        for child in range(node + 1, len(tokens)):
            if parents[child] == node and tokens[child] == token:
                return child
        return -1

    def following(self, node: int) -> Seq[int]:
        """Return the tokens of the children of ``node``."""
        if self.parents is None:
            return self.token_ids[node + 1 : node + 2]
        return [t for t, parent in zip(self.token_ids, self.parents, strict=True) if parent == node]

    def path(self, tokens: Seq[int]) -> Seq[int]:
        """Return the indices of the longest path that is a prefix of ``tokens``."""
        nodes: list[int] = []
        node = -1
        for token in tokens:
            node = self.child(node, token)
            if node < 0:
                break
            nodes.append(node)
        return nodes


def draft_tree(token_ids: array[int], parents: array[int], group: int = 0) -> Draft:
    """Make a draft from tokens and parents, without parents if it is a chain."""
    if all(parent == i for i, parent in enumerate(parents, -1)):
        return Draft(token_ids, group)
    return Draft(token_ids, group, parents)


class Wanted(NamedTuple):
    """A decoding sequence and the maximum number of tokens to draft for it."""

    sequence: Sequence
    most: int


class HiddenRows(NamedTuple):
    """The rows of a step's hidden states that belong to accepted tokens of a sequence."""

    sequence: Sequence
    first: int
    """Position of the token of the first row."""
    rows: Seq[int]
    """Indices into ``StepResult.hidden``, one for each position from ``first`` on."""


class Proposer(Protocol):
    """Makes drafts for sequences. Not thread-safe.

    Drafts change how many steps an output takes and never the output, so a proposer may keep any
    state, but it must not keep many ended sequences alive for long.
    """

    groups: int
    cheap: bool
    """Whether drafting costs next to nothing compared with verifying. Then drafts are made first
    and cut to the best length; else the length is chosen first, and nothing is made if it is 0."""

    steady: bool
    """Whether the last call only drafted, and read no prompt, so that its time is typical."""

    def propose(self, wanted: Seq[Wanted]) -> list[Draft | None]:
        """Return, for each of ``wanted``, a draft of at most ``most`` tokens or None."""
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
    """Groups whose drafts may be trees."""
    reads_all: bool
    """Whether it needs the hidden states of all computed tokens, or only of those from which a
    token is sampled."""

    def observe(self, step: ScheduledStep, tokens: Seq[list[int]], result: StepResult) -> None:
        """Take note of a finished step of the target; ``step.samples[i]`` got ``tokens[i]``.

        :func:`~penstock.speculate.hidden_states.hidden_rows` assigns the rows of ``result``, which
        is valid until the next step. Tokens found in the prefix cache have no rows.
        """
        ...
