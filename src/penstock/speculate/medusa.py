"""Drafts by Medusa heads, each of which predicts one later token from one hidden state.

Cai et al., "Medusa: simple LLM inference acceleration framework with multiple decoding heads",
2024. A head does not know what the heads before it predict, so their candidates are combined into
a tree. Which combinations are verified is decided by the heads' probabilities, not by a fixed
table.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.interface.executor import Executor, run
from penstock.interface.step_builder import build_step
from penstock.scheduler.draft import Draft
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.sequence import Slot
from penstock.speculate.draft import Wanted
from penstock.speculate.hidden_states import hidden_rows
from penstock.speculate.tree import Candidate, candidates, independent

_WIDTH = 4
"""Number of candidate tokens taken from each head."""


class _Seen(NamedTuple):
    """The hidden state from which a sequence's token at ``position + 1`` was sampled."""

    position: int
    state: NDArray[np.float32]


class MedusaProposer:
    """Drafts with Medusa heads, whose executor it owns."""

    kinds = 1
    trees = (0,)
    cheap = False
    steady = True
    reads_all = False

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._sampler = executor.sampler
        self._seen: Slot[_Seen] = Slot()

    def observe(
        self, step: ScheduledStep, tokens: Sequence[list[int]], features: NDArray[Any]
    ) -> None:
        seen = hidden_rows(step, tokens)
        if not seen:
            return
        states = features[[each.rows[-1] for each in seen]].astype(np.float32)
        for each, state in zip(seen, states, strict=True):
            position = each.first + len(each.rows) - 1
            self._seen.set(each.sequence, _Seen(position, state))

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        drafts: list[Draft | None] = [None] * len(wanted)
        lanes: list[int] = []
        states: list[NDArray[np.float32]] = []
        for i, (sequence, _) in enumerate(wanted):
            seen = self._seen.get(sequence)
            # A sequence that was forked or computed again may not have been seen this far.
            if seen is not None and seen.position == len(sequence.token_ids) - 2:
                lanes.append(i)
                states.append(seen.state)
        if not lanes:
            return drafts
        levels = self._run(np.stack(states))
        for lane, i in enumerate(lanes):
            drafts[i] = independent([level[lane] for level in levels], wanted[i].most)
        return drafts

    def reset(self) -> None: ...  # nothing is kept of a sequence that has ended

    def check_integrity(self) -> None: ...

    def close(self) -> None:
        self._executor.close()

    def _run(self, states: NDArray[np.float32]) -> list[list[list[Candidate]]]:
        """Return the likeliest tokens by head and lane, for ``states`` ``[lanes, hidden]``."""
        count = len(states)
        any_token = array("i", [0])  # heads read features alone, and have no cache
        result = run(
            self._executor,
            build_step([any_token] * count, [0] * count, (), features=states),
        )
        heads = (result.logits, *result.more_logits)
        return [candidates(self._sampler, logits, _WIDTH) for logits in heads]
