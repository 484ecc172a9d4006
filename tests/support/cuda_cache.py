"""What the arrays of a GPU's cache hold."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def values_in(part: torch.Tensor) -> NDArray[np.float32]:
    """Numbers or codes in keys, or in values, ``[..., head_dim]``, without their scales."""
    if part.dtype != torch.uint8:
        return part.float().cpu().numpy()
    pairs = part.view(torch.int8).cpu().numpy()
    low, high = (pairs << 4) >> 4, pairs >> 4
    codes = np.stack([low, high], axis=-1).reshape(*pairs.shape[:-1], -1)
    return codes.astype(np.float32)
