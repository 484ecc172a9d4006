"""Small steps as CUDA graphs: one for each of a few numbers of rows, to which a step is padded.

A step of a large model is hundreds of launches, which take the CPU longer than the GPU needs to
decode one token of each sequence. A graph launches them all at once. What is launched depends on
the rows alone and not on whose they are, so a graph serves steps that decode, steps that verify
drafts, and steps of a model that reads a few tokens before it drafts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch

from penstock.backends.cuda.step import DeviceStep
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput

_MOST_ROWS = 512
"""Of steps with drafts: with more, the GPU takes longer than launching it op by op."""
_FREE_ROWS = 16
"""A product takes about as long for so many rows as for one."""


def graphed_rows(limits: Limits) -> int:
    """Rows of the largest step that is captured."""
    drafting = min(limits.max_sequences * limits.rows_per_sequence, _MOST_ROWS)
    rows = max(limits.max_sequences, drafting)
    return min(rows, limits.max_logit_rows, limits.max_tokens)


def bucket_sizes(most: int) -> tuple[int, ...]:
    """Rows of the steps that are captured: 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ...

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


def bucket_of(step: StepInput, sizes: tuple[int, ...]) -> int | None:
    """The bucket that a step may be padded to; None if it is too large, or of another kind.

    In a graph every row gets logits, so most of them must want them, or they must be few. It
    copies and moves nothing, tells no further hidden states, and no sequence branches.
    """
    tokens, rows = step.num_tokens, len(step.logit_rows)
    if rows == 0 or tokens > max(_FREE_ROWS, 2 * rows):
        return None
    if len(step.block_copies) or len(step.slot_moves) or len(step.hidden_rows):
        return None
    if len(step.tree_parents) and tokens > step.num_sequences:
        return None
    at = bisect_left(sizes, tokens)
    return sizes[at] if at < len(sizes) else None


class DecodeGraphs:
    """Captured steps, in memory that they share."""

    def __init__(self) -> None:
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, size: int, run: Callable[[DeviceStep], None], step: DeviceStep) -> None:
        """Record what ``run`` launches for ``step``, whose tensors every replay reads anew.

        The step in them now must be one of padding. ``run`` may neither wait for the device nor
        read from it.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run(step)  # compiles the kernels and makes libraries' workspaces of this stream
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run(step)
        self._graphs[size] = graph

    def replay(self, size: int) -> None:
        """Run the captured step on the current stream, without waiting for it."""
        self._graphs[size].replay()

    def close(self) -> None:
        self._graphs.clear()
