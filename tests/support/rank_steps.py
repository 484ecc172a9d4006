"""Steps that ranks run, and what each of them has of their results."""

from __future__ import annotations

from typing import Any, Final

from numpy.typing import NDArray

from penstock.interface.executor import Limits
from penstock.plan.ops import GatherToFirst
from penstock.plan.plan import Plan
from support.tiny_plans import Chunk, step_of, tokens_of

LIMITS: Final = Limits(
    num_blocks=40, max_tokens=96, max_logit_rows=96, max_sequences=4, threads=1, num_states=40
)

_A, _B, _C = tokens_of(1, 90), tokens_of(2, 70), tokens_of(3, 8)
_A_BLOCKS, _B_BLOCKS = [7, 0, 39], [12, 5, 31]
STEPS: Final = [
    step_of([Chunk(_A, 0, 60, _A_BLOCKS), Chunk(_C, 0, 5, [2], rows=[1, 2, 4], hidden=[0])]),
    step_of([Chunk(_A, 60, 61, _A_BLOCKS), Chunk(_B, 0, 64, _B_BLOCKS, rows=range(64))]),
    step_of([Chunk(_B, 64, 65, _B_BLOCKS), Chunk(_A, 61, 62, _A_BLOCKS), Chunk(_C, 5, 6, [2])]),
    step_of([Chunk(_A, 62, 63, _A_BLOCKS)]),
    step_of([Chunk(_A, 63, 70, _A_BLOCKS, rows=[])]),  # no logits: nothing is gathered of them
    step_of([Chunk(_A, 70, 71, _A_BLOCKS)]),
]


def own_logits(plan: Plan, rank: int, logits: NDArray[Any]) -> NDArray[Any]:
    """What the ``rank`` with this ``plan`` has of all columns of ``logits``: rank 0 all, others
    those that they compute."""
    for op in plan.ops:
        if isinstance(op, GatherToFirst) and op.out is None and op.x == plan.logits:
            return logits[:, slice(*op.ranks[rank])]
    return logits
