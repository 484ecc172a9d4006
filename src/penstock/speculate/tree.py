"""Builds draft trees from the candidates that are likeliest to be accepted."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.interface.sampler import Sampler
from penstock.scheduler.draft import Draft, draft_tree

Candidate = tuple[int, float]
"""A token and the log-probability that the draft model gives it."""


class Node(NamedTuple):
    """A node of a growing tree."""

    token: int
    parent: int
    """Index of the parent; -1 is the last known token."""
    score: float
    """Log-probability of the path that ends here, under the draft model."""


def likeliest(nodes: Sequence[Node], most: int) -> Draft:
    """Return the draft of the ``most`` nodes with the highest scores, in that order.

    ``nodes`` has at least one, and parents before their children. A path is never likelier than its
    beginning, so a chosen node's parent is chosen before it, and every prefix of the draft is the
    best tree of its size (Li et al., "EAGLE-2", 2024).
    """
    order = sorted(range(len(nodes)), key=lambda i: -nodes[i].score)[:most]
    place = {-1: -1}
    for i, node in enumerate(order):
        place[node] = i
    return draft_tree(
        array("i", [nodes[i].token for i in order]),
        array("i", [place[nodes[i].parent] for i in order]),
    )


def independent(levels: Sequence[Sequence[Candidate]], most: int) -> Draft | None:
    """Return the draft of the ``most`` likeliest nodes where levels are independent.

    ``levels[d]`` are the distinct candidates for the token at depth d, likeliest first, as Medusa's
    heads give them: its tree is their Cartesian product. None if there are no candidates.
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
    """Return the ``count`` likeliest tokens of each row of ``logits`` ``[rows, vocab]``.

    A row whose largest logit is not finite has none.
    """
    found: list[list[Candidate]] = [[] for _ in range(len(logits))]
    fit = np.flatnonzero(np.isfinite(logits.max(axis=1))).tolist() if len(logits) else []
    entries = sampler.token_logprobs(logits, fit, [0] * len(fit), [count] * len(fit))
    for row, entry in zip(fit, entries, strict=True):
        found[row] = entry.top
    return found
