"""Blocks of the KV cache whose rows nobody may read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.backends.reference.cache import RowStore
from penstock.cache.geometry import BLOCK_SIZE


def spoil(executor: Any, blocks: Sequence[int], layers: int) -> None:
    """Fill blocks of each of the ``layers`` with NaN, on the CPU or the reference backend."""
    if not hasattr(executor, "_cache"):
        for layer in range(layers):
            executor._native.kv_fill(layer, np.array(blocks, np.int32), 0xFF)
        return
    slots = (np.array(blocks)[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1)
    for stores in executor._cache:
        for store in stores:
            store.data[blocks if isinstance(store, RowStore) else slots] = np.nan
