"""Which prompts begin as earlier ones did, and which continue an earlier answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.workload.requests import Bools, Floats, Ints, ObservedRequests


@dataclass(frozen=True)
class Sharing:
    """What a cache without bounds would find, and how conversations grow; a row for each request.

    A block is there for prompts that arrive after the prompt that had it, even where the server was
    not done with it, and blocks that an answer fills for those that arrive after its end.
    """

    shared_tokens: Ints
    """Prompt tokens in blocks that were there. The last token of a prompt is always computed, so
    the block that it fills is never counted."""
    parent: Ints
    """The earlier request whose whole prompt and answer the prompt begins with; else -1."""
    root: Ints
    """The request that its conversation began with: itself, where it has no parent."""
    turn: Ints
    """How many earlier requests a request continues, one the other."""
    pause_s: Floats
    """Seconds between the end of the parent and the arrival; else NaN."""

    @classmethod
    def of(cls, requests: ObservedRequests) -> Sharing:
        """The docstring of the class says what counts. Takes a second for four million blocks."""
        n, blocks, starts = len(requests), requests.blocks, requests.starts
        held = np.diff(starts)
        owner = np.repeat(np.arange(n), held)
        place = np.arange(len(blocks)) - starts[owner]
        in_prompt = place < requests.prompt_blocks[owner]
        ended = _next_arrivals(requests)
        there_from = np.where(in_prompt, owner + 1, ended[owner])
        first = np.full(len(blocks), n, np.int64)  # by number; there are no more numbers than this
        np.minimum.at(first, blocks, there_from)
        # What fills the prompt to its last token is computed all the same.
        findable = in_prompt & (place < (requests.prompt[owner] - 1) // requests.block)
        shared = findable & (first[blocks] <= owner)
        parent = _parents(requests, owner, in_prompt, ended)
        known = parent >= 0
        root, turn, pause = np.arange(n), np.zeros(n, np.int64), np.full(n, np.nan)
        for i in np.flatnonzero(known).tolist():  # parents come before
            root[i], turn[i] = root[parent[i]], turn[parent[i]] + 1
        before = parent[known]
        pause[known] = requests.arrived[known] - (
            requests.arrived[before] + requests.duration_s[before]
        )
        tokens = np.bincount(owner[shared], minlength=n) * requests.block
        return cls(tokens.astype(np.int64), parent, root, turn, pause)


def _next_arrivals(requests: ObservedRequests) -> Ints:
    """The first request that arrives after each one's end; their number, if the end is unknown."""
    ends = requests.arrived + requests.duration_s
    following = np.searchsorted(requests.arrived, ends)
    n = len(requests)
    after = np.maximum(following, np.arange(n) + 1)
    return np.where(np.isnan(ends), n, after).astype(np.int64)


def _parents(requests: ObservedRequests, owner: Ints, in_prompt: Bools, ended: Ints) -> Ints:
    """The requests that others continue. Only an answer that fills a block can be recognized."""
    n, blocks, starts = len(requests), requests.blocks, requests.starts
    parent = np.full(n, -1, np.int64)
    answered = np.flatnonzero(np.diff(starts) > requests.prompt_blocks)
    if not len(answered):
        return parent
    last = blocks[starts[answered + 1] - 1]
    # Of several with the same whole text the one that ended first.
    order = np.argsort(-ended[answered], kind="stable")
    by_block = np.full(int(blocks.max()) + 1, -1, np.int64)
    by_block[last[order]] = answered[order]
    found = by_block[blocks]
    there = in_prompt & (found >= 0) & (ended[found] <= owner)
    # A prompt may end with that block, and the answer go on.
    whole = requests.prompt + requests.output
    there &= whole[found] <= requests.prompt[owner]
    # Blocks of a request are in order: the last, of the longest beginning, stays.
    parent[owner[there]] = found[there]
    return parent
