"""The paged KV cache on a device: each layer's keys and values in blocks of tokens.

A block of one KV head is contiguous, ``[BLOCK_SIZE, head_dim]``, so that a tile of tokens is read
in whole rows, 16 bytes a thread, and one lookup in the block table serves all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.cache.geometry import BLOCK_SIZE, KvDType
from penstock.plan.kv_groups import KvLayer

_DTYPES: dict[KvDType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer, ``[num_blocks, kv_heads, BLOCK_SIZE, head_dim]``.

    In bfloat16, float16 or float32; or int8 codes, whose scales, one a token and KV head, are
    bfloat16 ``[num_blocks, kv_heads, BLOCK_SIZE]`` (None otherwise).
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """Every array there is; the first dimension of each is the block."""
        four = (self.keys, self.values, self.key_scales, self.value_scales)
        return tuple(array for array in four if array is not None)


def allocate(
    kv_layers: Iterable[KvLayer], kv_dtype: KvDType, num_blocks: int, device: torch.device
) -> list[LayerCache]:
    """Caches of ``num_blocks`` blocks, filled with zeros.

    They take ``num_blocks * layer_block_bytes(...)`` bytes a layer, less the bytes by which that
    rounds an int8 head up to fours. Raises torch.OutOfMemoryError where the device has too few.
    """
    caches = []
    for layer in kv_layers:
        scales = (num_blocks, layer.kv_heads, BLOCK_SIZE)
        codes = (*scales, layer.head_dim)
        keys, values = (
            torch.zeros(codes, dtype=_DTYPES[kv_dtype], device=device) for _ in range(2)
        )
        if kv_dtype != "int8":
            caches.append(LayerCache(keys, values))
            continue
        key_scales, value_scales = (
            torch.zeros(scales, dtype=torch.bfloat16, device=device) for _ in range(2)
        )
        caches.append(LayerCache(keys, values, key_scales, value_scales))
    return caches
