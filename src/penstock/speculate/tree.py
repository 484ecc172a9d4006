"""Which of many candidates a draft tree is made of: those that are likeliest to be accepted."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.interface.sampler import Sampler
from penstock.scheduler.draft import Draft, draft_tree

Candidate = tuple[int, float]
"""A token, and the logarithm of its probability where it would follow."""


class Node(NamedTuple):
    """A token of a tree that grows."""

    token: int
    parent: int
    """The index of the node that it follows; -1: the last known token."""
    score: float
    """The logarithm of the probability of the path to it and of itself, as the draft has it."""


def likeliest(nodes: Seq[Node], most: int) -> Draft:
    """The ``most`` of largest score, in that order, as a draft. There is at least one.

    Parents precede their children in ``nodes``. A path is never likelier than its beginning, so
    whatever is chosen has its parent before it, and any first part of the draft is the best tree
    of its size (Li et al., "EAGLE-2", 2024).
    """
    order = sorted(range(len(nodes)), key=lambda i: -nodes[i].score)[:most]
    place = {-1: -1}
    for i, node in enumerate(order):
        place[node] = i
    return draft_tree(
        array("i", [nodes[i].token for i in order]),
        array("i", [place[nodes[i].parent] for i in order]),
    )


def independent(levels: Seq[Seq[Candidate]], most: int) -> Draft | None:
    """The likeliest ``most`` tokens where what follows does not depend on what is before.

    ``levels[d]`` are the candidates for the token at depth d, likeliest first, none twice: as
    Medusa's heads tell them, whose trees are products of their levels. None if there is none.
    """
    if not levels or not levels[0]:
        return None
    nodes: list[Node] = []
    open_nodes: list[tuple[float, int, int, Node]] = []
    count = 0

    def offer(parent: int, score: float, depth: int) -> None:
        nonlocal count
        for token, logprob in levels[depth]:
            heapq.heappush(
                open_nodes, (-score - logprob, count, depth, Node(token, parent, score + logprob))
            )
            count += 1

    offer(-1, 0.0, 0)
    while open_nodes and len(nodes) < most:
        _, _, depth, node = heapq.heappop(open_nodes)
        nodes.append(node)
        if depth + 1 < len(levels):
            offer(len(nodes) - 1, node.score, depth + 1)
    return draft_tree(
        array("i", [node.token for node in nodes]), array("i", [node.parent for node in nodes])
    )


def candidates(
    sampler: Sampler[Any], logits: NDArray[np.float32], count: int
) -> list[list[Candidate]]:
    """The ``count`` likeliest tokens of each row of ``logits`` [R, vocab]; none of an unfit one."""
    found: list[list[Candidate]] = [[] for _ in range(len(logits))]
    fit = np.flatnonzero(np.isfinite(logits.max(axis=1))).tolist() if len(logits) else []
    entries = sampler.token_logprobs(logits, fit, [0] * len(fit), [count] * len(fit))
    for row, entry in zip(fit, entries, strict=True):
        found[row] = entry.top
    return found
