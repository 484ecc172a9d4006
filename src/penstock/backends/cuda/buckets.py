"""Sizes of the steps that are captured as CUDA graphs, and to which of them a step is padded.

Two kinds. A step in which most rows have logits, as where sequences decode or verify drafts, takes
one of many sizes, each with logits for every row. A *mixed* step, in which prompts are read too,
takes one of few sizes of tokens, each with a few of rows of logits.

Padding to a mixed size costs little. Products take 16, 32, 64, or else a multiple of 128 rows at a
time (``kernels/tiles.py``), and the sizes are those: a step computes the tiles that it would take
anyway. Logits are float32, of which 64 rows of 128K are written in 10 us at an H100's bandwidth,
where the output matrix is read in 300.

With 256 sequences these are 32 graphs, 19 of them mixed. Capturing one launches it twice op by op,
so 20 ms of a model of 32 layers. They share the memory that kernels use; of its own each has what
the driver keeps of some 300 launches, reckoned (not measured) at 3 MiB, 100 MiB in all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from penstock.interface.executor import Limits
from penstock.interface.step import StepInput

_MOST_TOKENS = 512
"""Maximum number of tokens in a captured step. With more, the GPU takes longer to run the step than
the CPU takes to launch it op by op."""
_FREE_ROWS = 16
"""A matrix product takes about as long for this many rows as for one."""
_MIXED_TOKENS = (16, 32, 64, 128, 256, 384, 512)
_MIXED_ROWS = (0, 16, 64, 256)
MOST_COPIES = 64
"""Maximum number of block copies in a captured step: a fork copies one block per sequence."""


class Bucket(NamedTuple):
    """The size to which a captured step is padded."""

    tokens: int
    rows: int
    """Number of rows with logits."""


@dataclass(frozen=True)
class Buckets:
    """The sizes of all captured steps; iterating starts with the largest."""

    sizes: tuple[int, ...]
    """Numbers of tokens of the captured steps in which every row has logits, ascending."""
    mixed: tuple[Bucket, ...]
    """Sizes of the other captured steps, ascending by tokens and then by rows; some are of both
    kinds."""

    @classmethod
    def of(cls, limits: Limits) -> Buckets:
        """Return the buckets of an engine whose steps have these limits."""
        most_rows = graphed_rows(limits)
        sizes = bucket_sizes(most_rows)
        most_tokens = min(limits.max_tokens, _MOST_TOKENS)
        mixed = []
        for tokens in (*(n for n in _MIXED_TOKENS if n < most_tokens), most_tokens):
            # More rows want logits only where a prompt's log-probabilities are asked for.
            most = min(tokens, most_rows)
            rows = (*(n for n in _MIXED_ROWS if n < most), most)
            mixed += [Bucket(tokens, each) for each in rows]
        return cls(sizes, tuple(mixed))

    def holding(self, step: StepInput) -> Bucket | None:
        """Return the bucket that a step is padded to; None if it is too large, or of another kind.

        A captured step returns no hidden states, has no sequence that branches and moves no slots.
        """
        if len(step.slot_moves) or len(step.hidden_rows) or len(step.block_copies) > MOST_COPIES:
            return None
        tokens, rows = step.num_tokens, len(step.logit_rows)
        if len(step.tree_parents) and tokens > step.num_sequences:
            return None
        if rows and tokens <= max(_FREE_ROWS, 2 * rows) and tokens <= self.sizes[-1]:
            size = self.sizes[bisect_left(self.sizes, tokens)]
            return Bucket(size, size)
        at = bisect_left(self.mixed, (tokens, rows))
        return next((bucket for bucket in self.mixed[at:] if bucket.rows >= rows), None)

    def __iter__(self) -> Iterator[Bucket]:
        return iter(sorted({*self.mixed, *(Bucket(n, n) for n in self.sizes)}, reverse=True))


def graphed_rows(limits: Limits) -> int:
    """Rows of logits of the largest step that is captured."""
    drafting = min(limits.max_sequences * limits.rows_per_sequence, _MOST_TOKENS)
    rows = max(limits.max_sequences, drafting)
    return min(rows, limits.max_logit_rows, limits.max_tokens)


def bucket_sizes(most: int) -> tuple[int, ...]:
    """Tokens of the steps with logits for every row: 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ...

    Ascending, and up to ``most``. Fewer than half of a step's rows are padding, and from
    16 on at most a third.
    """
    sizes, size = [], 1
    while size < most:
        sizes.append(size)
        power_of_two = size & (size - 1) == 0
        if size < 16:
            size *= 2
        else:
            size = size * 3 // 2 if power_of_two else size // 3 * 4
    return (*sizes, most)
