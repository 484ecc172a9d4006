"""Verification of drafts that were drawn at random: the general rule, for comparison.

Where a draft was drawn from a distribution q and the output must be distributed as p, it is
accepted with probability min(1, p/q), and else what takes its place is drawn from the residual
max(0, p - q), renormalized (Leviathan et al., "Fast inference from transformers via speculative
decoding", 2023; Chen et al., "Accelerating large language model decoding with speculative
sampling", 2023). Of several candidates that were drawn from q without replacement, each is tried in
turn, against the residual that those before it left and q without them (recursive rejection: Miao
et al., "SpecInfer", 2023; Li et al., "EAGLE", 2024). A chain is a tree of one candidate a node.

Penstock's drafts are decided for certain, where this rule comes to drawing as plain decoding does
(:mod:`penstock.speculate.verify`); the tests hold the one against the other. p and q are
*processed* distributions, as whole numbers (:mod:`penstock.sampling.select`), so no rounding tilts
the outcome.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec
import numpy as np

from penstock.sampling.draws import below, draw64
from penstock.sampling.select import Ints, kept_weights
from penstock.sampling.sequence import SequenceSampler

Weights = Sequence[int]
"""One whole number a token of the vocabulary, not all 0: its probability times some constant."""

_PLAIN = 0  # streams of draw64: what plain decoding draws,
_CANDIDATE, _ACCEPT = 1, 2  # and candidate i's own draw and its acceptance, 2 i further


class SampledTree(msgspec.Struct, frozen=True):
    """Candidates that follow the known tokens, drawn node by node without replacement."""

    token_ids: list[int]
    parents: list[int]
    """Parent of each token: the index of the one that it follows, before it; -1: the last known
    token. Those of one parent were drawn in this order."""
    drawn_from: list[Weights]
    """``[i + 1]``: q of what follows token i, ``[0]`` of what follows the last known token. Not
    looked at where nothing follows."""


def processed_weights(logits: np.ndarray, state: SequenceSampler) -> Ints:
    """Weights [vocab] by which plain decoding would draw the next token from ``logits`` [vocab],
    finite float32, which are left as they are. Greedy: one of the largest logit, 0 else."""
    row = np.array(logits, np.float32)
    if state.changes_logits:
        state.apply(row)
    weights = np.zeros(len(row), np.int64)
    params = state.params
    if params.temperature == 0.0:
        weights[row.argmax()] = 1
        return weights
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        ids, kept = kept_weights(
            row,
            row.max(),
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
        )
    if ids is None:
        return kept
    weights[ids] = kept
    return weights


def draw_candidates(weights: Weights, count: int, key: int, position: int) -> list[int]:
    """Up to ``count`` different tokens for output ``position``, drawn one after the other."""
    left = list(weights)
    candidates: list[int] = []
    while len(candidates) < count and any(left):
        bits = draw64(key, position, _CANDIDATE + 2 * len(candidates))
        candidates.append(_pick(left, bits))
        left[candidates[-1]] = 0
    return candidates


def verify_node(
    target: Weights, draft: Weights, candidates: Sequence[int], key: int, position: int
) -> int:
    """The token at ``position``, distributed as ``target``: one of ``candidates``, which
    :func:`draw_candidates` drew from ``draft`` there, or another."""
    p, q = list(target), list(draft)
    for i, token in enumerate(candidates):
        total_p, total_q = sum(p), sum(q)
        bits = draw64(key, position, _ACCEPT + 2 * i)
        if bits * q[token] * total_p < (p[token] * total_q) << 64:
            return token
        p = [max(0, a * total_q - b * total_p) for a, b in zip(p, q, strict=True)]
        q[token] = 0
    return _pick(p, draw64(key, position, _PLAIN))


def verify_tree(
    tree: SampledTree, target: Callable[[list[int]], Weights], key: int, position: int
) -> list[int]:
    """The tokens from output ``position`` on: accepted candidates, and one token more.

    ``target(path)`` are the processed weights of what follows the known tokens and ``path``.
    """
    children: list[list[int]] = [[] for _ in range(len(tree.token_ids) + 1)]
    for node, parent in enumerate(tree.parents):
        children[parent + 1].append(node)
    path: list[int] = []
    node = -1
    while True:
        following = children[node + 1]
        weights = target(path)
        candidates = [tree.token_ids[child] for child in following]
        drafted = tree.drawn_from[node + 1] if following else weights
        token = verify_node(weights, drafted, candidates, key, position + len(path))
        path.append(token)
        if token not in candidates:
            return path
        node = following[candidates.index(token)]


def _pick(weights: Weights, bits: int) -> int:
    """As :func:`penstock.sampling.select.pick`, of numbers of any size."""
    running = list(accumulate(weights))
    return bisect_right(running, below(running[-1], bits))
