"""Drafts by a smaller model: its greedy continuation, one step of it for each token."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.cache.geometry import Window
from penstock.interface.executor import Executor, Pending
from penstock.interface.step import Int32s
from penstock.interface.step_builder import ChainSteps, Tables, build_step
from penstock.scheduler.draft import Draft
from penstock.scheduler.sequence import SequenceState
from penstock.speculate.draft import Wanted
from penstock.speculate.draft_cache import DraftCache, Reading

_FEW = 4  # known tokens that are read on the way: the last one, and what was rejected before it


@dataclass(eq=False, slots=True)
class _Reading(Reading):
    """The state of a sequence in the draft model's cache."""

    drafted: array[int] = field(default_factory=lambda: array("i"))
    """Drafted tokens whose keys and values follow in the cache. They count as computed as far as
    the sequence turns out to have them."""


class ModelProposer:
    """Drafts with a model, for all sequences of a step at once.

    It owns the model's executor and the bookkeeping of its KV cache. A draft is the greedy
    continuation, for requests that sample too: :mod:`penstock.speculate.verify` shows why that
    leaves outputs unchanged. A prompt is read in chunks of at most ``max_tokens`` tokens, one a
    call, and a sequence gets no draft until all of it was read. Keys and values of rejected drafts
    lie behind ``num_computed`` and are overwritten.
    """

    kinds = 1
    cheap = False

    def __init__(
        self,
        executor: Executor,
        max_tokens: int,
        prefix_caching: bool,
        windows: Sequence[Window | None] = (None,),
    ) -> None:
        """``windows``: those of the model's groups of cached layers."""
        self._executor = executor
        self._placeholders = executor.capabilities.placeholders
        self._max_tokens = max_tokens
        self._cache = DraftCache[_Reading](executor.num_blocks, windows, prefix_caching)
        self.steady = True

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        self._cache.forget_ended()
        self.steady = True
        drafts: list[Draft | None] = [None] * len(wanted)
        lanes: list[_Lane] = []
        left = self._max_tokens
        for i, (sequence, most) in enumerate(wanted):
            if left == 0:
                break
            reading = self._reading(sequence)
            if reading is None:
                continue
            known = len(sequence.token_ids)
            count = min(known - reading.num_computed, left)
            start = reading.num_computed
            fits = self._cache.num_fitting(reading)
            count = min(count, fits)
            if count == 0:
                continue
            drafted = min(most, fits - count + 1) if start + count == known else 0
            end = start + count + max(drafted - 1, 0)
            self._cache.extend(reading, end)
            if count > _FEW:
                self.steady = False
            lanes.append(_Lane(i, sequence, reading, start, count, drafted))
            left -= count
        if lanes:
            # The longest drafts first, so that those who still draft are the first rows.
            lanes.sort(key=lambda lane: -lane.drafted)
            for lane, tokens in zip(lanes, self._run(lanes), strict=True):
                if tokens:
                    drafts[lane.index] = Draft(tokens)
        return drafts

    def reset(self) -> None:
        self._cache.reset()

    def check_integrity(self) -> None:
        self._cache.check_integrity()

    def close(self) -> None:
        self._cache.clear()
        self._executor.close()

    def _reading(self, sequence: SequenceState) -> _Reading | None:
        """Return the sequence's up-to-date state, or None if it does not fit in the cache."""
        reading = self._cache.get(sequence)
        if reading is None:
            return self._cache.begin_cached(sequence, _Reading())
        tokens = sequence.token_ids
        # The last token is read again if need be: a row must predict what follows it.
        agreed = 0
        for drafted, token in zip(reading.drafted, tokens[reading.num_computed :], strict=False):
            if drafted != token:
                break
            agreed += 1
        reading.num_computed = min(reading.num_computed + agreed, len(tokens) - 1)
        reading.drafted = array("i")
        self._cache.commit(reading, tokens)
        return reading

    def _run(self, lanes: list[_Lane]) -> list[array[int]]:
        """Read each lane's known tokens and draft; return the draft of each."""
        tables = list(zip(*[lane.reading.table.blocks for lane in lanes], strict=True))
        drafting = sum(lane.drafted > 0 for lane in lanes)
        tokens = [lane.sequence.token_ids[lane.start : lane.start + lane.count] for lane in lanes]
        step = build_step(
            tokens,
            [lane.start for lane in lanes],
            tables,
            num_logits=[1 if lane.drafted else 0 for lane in lanes],
        )
        first = self._executor.submit(step)
        columns = self._draft_on(lanes, first, drafting, step.context_lens, tables)
        drafts = [array("i") for _ in lanes]
        for column in columns:
            for draft, token in zip(drafts, column, strict=False):
                draft.append(token)
        for lane, draft in zip(lanes, drafts, strict=True):
            reading = lane.reading
            reading.num_computed = lane.start + lane.count
            reading.drafted = draft[:-1]  # of the last, keys and values were not computed
        return drafts

    def _draft_on(
        self,
        lanes: list[_Lane],
        first: Pending,
        drafting: int,
        ends: Int32s,
        tables: Tables,
    ) -> list[list[int]]:
        """Draft the second token of each lane that wants one, the third, and so on.

        ``first`` is the step whose argmax are the first tokens of the ``drafting`` lanes. Returns
        the tokens by position. Where placeholders may stand for the tokens of the step before, all
        steps are submitted before the host reads any token.
        """
        longest = lanes[0].drafted
        if longest <= 1:
            return [_argmax(first).tolist()]
        chain = ChainSteps(tables, ends[:drafting], longest - 1)
        columns: list[list[int]] = []
        pending = [first]
        rows = drafting
        placeholders = ~np.arange(rows, dtype=np.int32)
        for step in range(longest - 1):
            while lanes[rows - 1].drafted <= step + 1:
                rows -= 1
            if self._placeholders:
                tokens = placeholders[:rows]
            else:
                argmax = _argmax(pending.pop())
                columns.append(argmax.tolist())
                tokens = argmax[:rows].copy()  # the next step overwrites it
            pending.append(self._executor.submit(chain.step_input(step, tokens)))
        return columns + [_argmax(each).tolist() for each in pending]


def _argmax(pending: Pending) -> Int32s:
    result = pending.wait().result
    assert result is not None, "nothing was sampled"
    return result.argmax


@dataclass(slots=True)
class _Lane:
    """The part of one call that concerns one sequence."""

    index: int
    sequence: SequenceState
    reading: _Reading
    start: int
    count: int
    """Known tokens to read."""
    drafted: int
    """Tokens to draft; 0 while some of the known ones remain to be read."""
