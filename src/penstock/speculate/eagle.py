"""Drafts by an EAGLE head: one layer that continues from the target's hidden states.

Li et al., "EAGLE: speculative sampling requires rethinking feature uncertainty", 2024; "EAGLE-2:
faster inference of language models with dynamic draft trees", 2024; "EAGLE-3: scaling up inference
acceleration of large language models via training-time test", 2025. Versions 1 and 3 differ in the
head's mathematics, which is its plan's concern, and in the features that it gets; trees are built
as in EAGLE-2 for both.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import Window
from penstock.interface.draft_tree import MAX_ROWS
from penstock.interface.executor import Executor, run
from penstock.interface.step import Int32s, StepResult
from penstock.interface.step_builder import ChainSteps
from penstock.scheduler.draft import Draft
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.sequence import SequenceState
from penstock.speculate.draft import Wanted
from penstock.speculate.draft_batch import DraftBatch
from penstock.speculate.draft_cache import DraftCache
from penstock.speculate.eagle_reading import HeadReading, Lane
from penstock.speculate.hidden_states import hidden_rows
from penstock.speculate.tree import Candidate, Node, candidates, likeliest

_MOST_SEEN = 32 << 20
"""Maximum bytes of features kept by step before they are assigned to sequences. In a batch,
assigning takes as long as scheduling, and is of no use while nothing is drafted. The sequences of
these steps stay in memory until then, even if they have ended."""


class _Seen(NamedTuple):
    """A step of the target whose features were not assigned to sequences yet."""

    step: ScheduledStep
    tokens: Sequence[list[int]]
    features: NDArray[np.float32]
    """The features of all rows that have any."""


class EagleProposer:
    """Drafts with an EAGLE head, whose executor and KV cache it owns.

    ``features`` is the number of feature columns of a row. The first ``target_columns`` of them
    come from the target; the rest is the head's own state, 0 for tokens that the target computed.
    Both numbers are equal in EAGLE 1, where the two are of one kind. ``depth`` and ``width`` are
    those of the draft tree; ``max_tokens`` is the maximum of a step. ``token_ids``, int32
    ``[draft vocabulary]``, has the target's id of each of the head's tokens; None means the same.
    ``windows`` are those of the head's groups of cached layers.

    A chain takes one step of one row for each token. A tree grows by levels: each step computes the
    tokens of all levels so far again, as one tree behind the known text, since a row must not see
    its siblings of the previous step, whose keys lie in the cache like those of known tokens.
    """

    kinds = 1
    cheap = False
    reads_all = True

    def __init__(
        self,
        executor: Executor,
        *,
        features: int,
        target_columns: int,
        depth: int,
        width: int,
        max_tokens: int,
        token_ids: Int32s | None = None,
        windows: Sequence[Window | None] = (None,),
    ) -> None:
        self._executor = executor
        self._sampler = executor.sampler
        self._features = features
        self._target_columns = target_columns
        self._depth = depth
        self._width = width
        self.trees = () if width == 1 else (0,)
        self._max_tokens = max_tokens
        self._token_ids = token_ids
        self._cache = DraftCache[HeadReading](executor.num_blocks, windows)
        self._seen: list[_Seen] = []
        """Steps whose features were not assigned to sequences yet."""
        self._seen_bytes = 0
        self.steady = True

    def observe(
        self, step: ScheduledStep, tokens: Sequence[list[int]], features: NDArray[Any]
    ) -> None:
        self._seen.append(_Seen(step, tokens, features.astype(np.float32)))
        self._seen_bytes += self._seen[-1].features.nbytes
        if self._seen_bytes > _MOST_SEEN:
            self._give_out()

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        self._cache.forget_ended()
        self._give_out()
        drafts: list[Draft | None] = [None] * len(wanted)
        asked = []
        for i, (sequence, most) in enumerate(wanted):
            reading = self._cache.get(sequence)
            if reading is not None and reading.end == len(sequence.token_ids) - 1:
                asked.append(Lane(sequence, reading, i, most, min(self._depth, most)))
        lanes = self._fitting(asked)
        self.steady = all(lane.count <= self._depth + 1 for lane in lanes)
        if lanes:
            self._read(lanes)
            if self._width == 1:
                self._chain([lane for lane in lanes if lane.frontier])
            level = 1
            while growing := [lane for lane in lanes if lane.levels > level and lane.frontier]:
                self._grow(growing)
                level += 1
        for lane in lanes:
            if lane.nodes:
                drafts[lane.index] = likeliest(lane.nodes, lane.most)
        return drafts

    def reset(self) -> None: ...  # nothing is kept of a sequence that has ended

    def check_integrity(self) -> None:
        self._cache.check_integrity()

    def close(self) -> None:
        self._cache.clear()
        self._seen.clear()
        self._executor.close()

    def _begin(self, sequence: SequenceState, base: int) -> HeadReading:
        self._cache.forget_ended()
        return self._cache.begin(sequence, HeadReading(base=base))

    def _give_out(self) -> None:
        """Assign the kept features to the sequences that still run."""
        for step, tokens, features in self._seen:
            for sequence, first, rows in hidden_rows(step, tokens):
                some = [features[row] for row in rows]
                reading = self._cache.get(sequence)
                if reading is None or reading.end != first:
                    reading = self._begin(sequence, first)
                if not reading.add(some):
                    self._catch_up(Lane(sequence, reading))
                    if not reading.add(some):
                        self._begin(sequence, first).add(some)
        self._seen.clear()
        self._seen_bytes = 0

    def _catch_up(self, lane: Lane) -> None:
        """Read all features that can be read, without drafting."""
        while lanes := self._fitting([lane]):
            self._read(lanes)

    def _fitting(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Return the lanes with something to read and with cache blocks for it and for drafts."""
        budget = self._max_tokens
        fitting = []
        for lane in lanes:
            reading = lane.reading
            start = reading.num_computed
            # A row needs the token behind its position.
            ready = lane.sequence.num_known_tokens - 1 - reading.base - start
            fits = self._cache.num_fitting(reading)
            lane.count = min(reading.num_pending, ready, fits, budget)
            if lane.count <= 0:
                continue
            if lane.count < reading.num_pending:
                lane.levels = 0
            spare = min(fits - lane.count, budget, MAX_ROWS) // self._width
            lane.levels = min(lane.levels, 1 + spare)
            rows = max(lane.levels - 1, 0) * self._width
            self._cache.extend(reading, start + lane.count + rows)
            budget -= max(lane.count, rows)
            fitting.append(lane)
        return fitting

    def _read(self, lanes: Sequence[Lane]) -> None:
        """Read the lanes' features; those that draft get the candidates of their first token."""
        step = DraftBatch(self._features)
        drafting = []
        for lane in lanes:
            reading, tokens = lane.reading, lane.sequence.token_ids
            start, first = reading.num_computed, reading.base + reading.num_computed + 1
            features = step.add(
                reading.table,
                start,
                tokens[first : first + lane.count],
                1 if lane.levels else 0,
            )
            features[:, : self._target_columns] = reading.take(lane.count)
            if lane.levels:
                drafting.append(lane)
        result = run(self._executor, step.step_input())
        for lane in lanes:
            self._cache.commit(lane.reading, lane.sequence.token_ids)
        if drafting:
            self._take(drafting, [[-1]] * len(drafting), result)

    def _chain(self, lanes: list[Lane]) -> None:
        """Extend each lane's first token to a chain, one token a step."""
        # The longest first, so that those who still draft are the first rows.
        lanes.sort(key=lambda lane: -lane.levels)
        longest = lanes[0].levels if lanes else 0
        if longest <= 1:
            return
        tables = list(zip(*[lane.reading.table.blocks for lane in lanes], strict=True))
        ends = np.array([lane.reading.num_computed for lane in lanes], np.int32)
        chain = ChainSteps(tables, ends, longest - 1)
        tokens = np.array([lane.nodes[0].token for lane in lanes], np.int32)
        states = np.stack([lane.states[-1] for lane in lanes])
        features = np.zeros((len(lanes), self._features), np.float32)
        rows = len(lanes)
        for step in range(longest - 1):
            while lanes[rows - 1].levels <= step + 1:
                rows -= 1
            features[:rows, -states.shape[1] :] = states[:rows]
            result = run(self._executor, chain.step_input(step, tokens[:rows], features[:rows]))
            assert result.hidden is not None
            states = result.hidden  # read before the next step overwrites it
            tokens = self._named(result.argmax)
            for lane, token in zip(lanes, tokens.tolist(), strict=False):
                lane.nodes.append(Node(token, step, 0.0))
        for lane in lanes:
            lane.frontier = []

    def _grow(self, lanes: Sequence[Lane]) -> None:
        """Expand the likeliest nodes of each lane's frontier."""
        step = DraftBatch(self._features)
        chosen = []
        for lane in lanes:
            best = sorted(lane.frontier, key=lambda node: -lane.nodes[node].score)[: self._width]
            lane.expanded += best
            chosen.append(best)
            rows = lane.expanded
            start = lane.reading.num_computed
            features = step.add(
                lane.reading.table,
                start,
                array("i", [lane.nodes[node].token for node in rows]),
                len(best),
                [lane.row_of(lane.nodes[node].parent) for node in rows],
            )
            states = [lane.states[lane.nodes[node].parent] for node in rows]
            features[:, self._features - len(states[0]) :] = states
        self._take(lanes, chosen, run(self._executor, step.step_input()))

    def _take(
        self, lanes: Sequence[Lane], computed: Sequence[list[int]], result: StepResult
    ) -> None:
        """Add the children of the nodes that were ``computed``; -1 is the last known token."""
        assert result.hidden is not None
        states = result.hidden.astype(np.float32)  # the next step overwrites it
        row = 0
        found = self._candidates(result)
        for lane, nodes in zip(lanes, computed, strict=True):
            lane.frontier = []
            for node in nodes:
                lane.states[node] = states[row]
                score = lane.nodes[node].score if node >= 0 else 0.0
                for token, logprob in found[row]:
                    lane.frontier.append(len(lane.nodes))
                    lane.nodes.append(Node(token, node, score + logprob))
                row += 1

    def _named(self, columns: Int32s) -> Int32s:
        """Translate the head's token ids to the target's, in a new array."""
        return columns.copy() if self._token_ids is None else self._token_ids[columns]

    def _candidates(self, result: StepResult) -> list[list[Candidate]]:
        if self._width == 1:
            return [[(token, 0.0)] for token in self._named(result.argmax).tolist()]
        ids = self._token_ids
        found = candidates(self._sampler, result.logits, self._width)
        if ids is None:
            return found
        return [[(int(ids[token]), logprob) for token, logprob in each] for each in found]
