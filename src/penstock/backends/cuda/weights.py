"""Weights from NumPy arrays to the device, through pinned memory."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda.pinned_buffers import PinnedBuffers
from penstock.models.spec import DType

STAGING_BYTES: Final = 32 << 20
"""Bytes of each of two pinned buffers. Transfers of this size run at the bus's full rate."""

TORCH_DTYPES: Final[dict[DType, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_NUMPY: Final[dict[torch.dtype, np.dtype[Any]]] = {
    torch.float32: np.dtype(np.float32),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float16: np.dtype(np.float16),
    torch.int8: np.dtype(np.int8),
    torch.uint8: np.dtype(np.uint8),
    torch.int32: np.dtype(np.int32),
}


def dtype_of(array: NDArray[Any]) -> torch.dtype:
    """The type of a tensor that holds ``array`` as it is."""
    return next(dtype for dtype, numpy in _NUMPY.items() if numpy == array.dtype)


class Uploader:
    """Copies arrays to a device. What a copy reads lies in memory that the device can reach: a
    memory-mapped file's pages would be copied there by the driver, piece by piece, in between."""

    def __init__(self, device: torch.device, staging_bytes: int = STAGING_BYTES) -> None:
        self.device = device
        self._pinned = PinnedBuffers(staging_bytes, torch.uint8, device)

    def put(self, array: NDArray[Any], target: Tensor) -> None:
        """Copy ``array`` into ``target``, contiguous and of its size, rounded to target's type.

        The copy may still be on its way; what runs after it on the current stream finds it done.
        """
        if array.size != target.numel() or not target.is_contiguous():
            raise ValueError(f"an array of {array.shape} does not fill {tuple(target.shape)}")
        rounded = array.astype(_NUMPY[target.dtype], copy=False)
        source = np.ascontiguousarray(rounded).reshape(-1).view(np.uint8)
        bytes_on_device = target.view(-1).view(torch.uint8)
        for start in range(0, source.size, self._pinned.length):
            part = source[start : start + self._pinned.length]
            self._pinned.take()[: part.size] = part
            self._pinned.send(bytes_on_device[start : start + part.size])

    def tensor(self, array: NDArray[Any], dtype: torch.dtype) -> Tensor:
        """A new tensor on the device of ``array``'s shape, rounded to ``dtype``."""
        target = torch.empty(array.shape, dtype=dtype, device=self.device)
        self.put(array, target)
        return target
