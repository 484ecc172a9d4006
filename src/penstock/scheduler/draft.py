"""Tokens that are guessed to follow those of a sequence."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec


class Draft(msgspec.Struct, frozen=True, gc=False):
    """Tokens that may follow the known ones of a sequence, of which each was decided for certain.

    A chain, or a tree of alternatives. The model verifies it by drawing, at each position, what
    plain decoding would draw, and by going on while that is in the draft
    (:mod:`penstock.speculate.verify`).
    """

    token_ids: array[int]
    """The draft tokens, at least one. The first may follow the sequence's last known token."""
    kind: int = 0
    """Number of the draft's kind, less than ``Proposer.kinds``. Drafts of one kind are expected
    to be accepted about equally often."""
    parents: array[int] | None = None
    """Parent of each token: the index of the draft token that it follows, which is lower than its
    own, or -1 if it follows the last known token. Tokens with the same parent differ. None: a
    chain, in which each token follows the one before it."""

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
        """Return a draft of its first ``count`` tokens."""
        if count >= len(self.token_ids):
            return self
        if self.parents is None:
            return Draft(self.token_ids[:count], self.kind)
        return draft_tree(self.token_ids[:count], self.parents[:count], self.kind)

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

    def following(self, node: int) -> Sequence[int]:
        """The tokens that follow ``node``."""
        if self.parents is None:
            return self.token_ids[node + 1 : node + 2]
        return [t for t, parent in zip(self.token_ids, self.parents, strict=True) if parent == node]

    def path(self, tokens: Sequence[int]) -> Sequence[int]:
        """The indices of those of ``tokens`` that are in the draft from its start, in a row."""
        nodes: list[int] = []
        node = -1
        for token in tokens:
            node = self.child(node, token)
            if node < 0:
                break
            nodes.append(node)
        return nodes


def draft_tree(token_ids: array[int], parents: array[int], kind: int = 0) -> Draft:
    """A draft of these tokens and parents, known as a chain if it is one."""
    if all(parent == i for i, parent in enumerate(parents, -1)):
        return Draft(token_ids, kind)
    return Draft(token_ids, kind, parents)
