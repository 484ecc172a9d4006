"""Small steps as CUDA graphs: one for each of a few sizes, to which a step is padded.

A step of a large model is hundreds of launches, which take the CPU longer than the GPU needs for
the few tokens of a step that decodes, or that reads a part of a prompt beside. A graph launches
them all at once. What is launched depends on how many rows there are and how many of them get
logits (``buckets.py``), and not on whose they are, so a graph serves any mix of sequences.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.backends.cuda.buckets import Bucket
from penstock.backends.cuda.step import DeviceStep


class StepGraphs:
    """Captured steps, in memory that they share."""

    def __init__(self, shared: bool = False) -> None:
        """``shared``: by ranks, whose communicator has a thread that may call CUDA while a step is
        captured."""
        self._error_mode = "thread_local" if shared else "global"
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, bucket: Bucket, run: Callable[[DeviceStep], None], step: DeviceStep) -> None:
        """Record what ``run`` launches for ``step``, whose tensors every replay reads anew.

        The step in them now must be one of padding. ``run`` may neither wait for the device nor
        read from it.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run(step)  # compiles the kernels and makes libraries' workspaces of this stream
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode=self._error_mode
        ):
            run(step)
        self._graphs[bucket] = graph

    def replay(self, bucket: Bucket) -> None:
        """Run the captured step on the current stream, without waiting for it."""
        self._graphs[bucket].replay()

    def close(self) -> None:
        self._graphs.clear()
