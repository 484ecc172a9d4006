"""One step of the engine: the only objects that pass between scheduler and executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE

__all__ = ["BLOCK_SIZE", "StepInput", "StepResult"]

Int32s = NDArray[np.int32]


def _no_rows() -> Int32s:
    return np.empty(0, np.int32)


@dataclass(frozen=True)
class StepInput:
    """Everything one step of the model needs, as int32 arrays over concatenated tokens.

    ``T`` tokens of ``S`` sequences run in this step; sequence ``s`` owns the token rows
    ``query_starts[s]:query_starts[s + 1]``, which are its last positions: they end at
    ``context_lens[s] - 1``. Its cache blocks, first to last, are
    ``block_ids[block_starts[s]:block_starts[s + 1]]`` and cover at least ``context_lens[s]``
    slots. ``R`` of the token rows get logits, and ``H`` others are only told as hidden states.
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
    hidden_rows: Int32s = field(default_factory=_no_rows)
    """[H] ascending token rows, none of them in ``logit_rows``."""

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
    hidden: NDArray[Any] | None = None
    """[R + H, hidden] after the last norm, of ``logit_rows`` and then of ``hidden_rows``.

    float32, or ml_dtypes.bfloat16 where the output matrix reads that. None where a step wants no
    hidden rows and the executor keeps none.
    """
