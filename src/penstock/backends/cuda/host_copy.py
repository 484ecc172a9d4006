"""Copies rows from the device to the host."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


class HostCopy:
    """A copy that is queued at once: what is queued later may overwrite the rows."""

    def __init__(self, rows: Tensor) -> None:
        on_device = rows.device.type == "cuda"
        self._host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=on_device)
        self._host.copy_(rows, non_blocking=on_device)
        self._done = torch.cuda.Event() if on_device else None
        if self._done is not None:
            self._done.record()

    def wait(self, dtype: torch.dtype | None = None) -> NDArray[Any]:
        """The rows, once they are here, as ``dtype`` or as they were; their memory is the array's.

        Raises RuntimeError where the GPU fails.
        """
        if self._done is not None:
            self._done.synchronize()
        array: NDArray[Any] = self._host.to(dtype or self._host.dtype).numpy()
        return array
