"""Decode steps as CUDA graphs: one for each of a few sizes, to which a step is padded.

A step of a large model is hundreds of launches, which take the CPU longer than the GPU needs to
decode one token of each sequence. A graph launches them all at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch

from penstock.backends.cuda.step import DeviceStep
from penstock.engine.step import StepInput


def bucket_sizes(max_sequences: int) -> tuple[int, ...]:
    """Sequences of the decode steps that are captured: 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ...

    Ascending, and up to ``max_sequences``. Fewer than half of a step's rows are padding, and from
    16 on at most a third.
    """
    sizes, size = [], 1
    while size < max_sequences:
        sizes.append(size)
        power_of_two = size & (size - 1) == 0
        if size < 16:
            size *= 2
        else:
            size = size * 3 // 2 if power_of_two else size // 3 * 4
    return (*sizes, max_sequences)


def bucket_of(step: StepInput, sizes: tuple[int, ...]) -> int | None:
    """The bucket that a step may be padded to; None if it does more than decode.

    It must compute one token of each sequence, with logits for each, and copy or move nothing.
    """
    count = step.num_sequences
    decodes = step.num_tokens == count == len(step.logit_rows)
    decodes = decodes and not len(step.block_copies) and not len(step.slot_moves)
    at = bisect_left(sizes, count)
    return sizes[at] if decodes and at < len(sizes) else None


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
