"""One step of the engine: the only objects that pass between scheduler and executor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE

__all__ = ["BLOCK_SIZE", "StepInput", "StepResult"]

Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class StepInput:
    """Everything one step of the model needs, as int32 arrays over concatenated tokens.

    ``T`` tokens of ``S`` sequences run in this step; sequence ``s`` owns the token rows
    ``query_starts[s]:query_starts[s + 1]``, which are its last positions: they end at
    ``context_lens[s] - 1``. Its cache blocks, first to last, are
    ``block_ids[block_starts[s]:block_starts[s + 1]]`` and cover at least ``context_lens[s]``
    slots. ``R`` of the token rows get logits.
    """

    token_ids: Int32s  # [T]; ~i: what the launch before samples i-th (OverlappingExecutor.launch)
    positions: Int32s  # [T] position of each token in its sequence, from 0
    slots: Int32s  # [T] block id * BLOCK_SIZE + offset, where this token's K and V go
    query_starts: Int32s  # [S + 1]
    context_lens: Int32s  # [S] tokens in the cache after this step
    block_starts: Int32s  # [S + 1]
    block_ids: Int32s  # [block_starts[-1]]
    logit_rows: Int32s  # [R] ascending indices into the token rows
    block_copies: Int32s  # [C, 2] (from, to) block ids, copied before anything else runs

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)


@dataclass(frozen=True)
class StepResult:
    """What the executor computed. The arrays are views that the next step overwrites."""

    logits: NDArray[np.float32]  # [R, vocab_size]
    argmax: Int32s  # [R] index of the largest logit, the lowest on ties; of a NaN if there is one
