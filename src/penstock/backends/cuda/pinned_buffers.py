"""Pinned host memory, from which arrays are copied to the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


class PinnedBuffers:
    """Two pinned buffers in turn: one is written while the other's copy is on its way.

    On the CPU, where kernels are interpreted, they are plain memory and copies are done at once.
    """

    def __init__(self, length: int, dtype: torch.dtype, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._buffers = [torch.zeros(length, dtype=dtype, pin_memory=on_gpu) for _ in range(2)]
        self._arrays: list[NDArray[Any]] = [buffer.numpy() for buffer in self._buffers]
        self._sent = [torch.cuda.Event() for _ in self._buffers] if on_gpu else None
        self._turn = 0

    @property
    def length(self) -> int:
        """Elements of each buffer."""
        return len(self._buffers[0])

    def take(self) -> NDArray[Any]:
        """The buffer to write next. Waits until what it last held has been copied."""
        if self._sent is not None:
            self._sent[self._turn].synchronize()
        return self._arrays[self._turn]

    def send(self, target: Tensor) -> None:
        """Copy the beginning of the buffer just taken to ``target``, on the current stream.

        Returns at once; what runs on that stream later finds it done.
        """
        target.copy_(self._buffers[self._turn][: len(target)], non_blocking=True)
        if self._sent is not None:
            self._sent[self._turn].record()
        self._turn = 1 - self._turn
