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
from penstock.plan.plan import Plan

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


def page_layers(plan: Plan) -> tuple[KvLayer, ...]:
    """The layers whose keys and values a page holds: one for each place.

    Layers of several groups at one place share its memory, of which a block belongs to one group at
    a time. Raises ValueError where a layer's cache is of a kind that no kernel reads.
    """
    kinds = {(each.kv_heads, each.head_dim, each.value_dim) for each in plan.kv_layers}
    if any(value_dim is not None for _, _, value_dim in kinds):
        raise ValueError("no kernel reads a KV cache whose keys and values differ in size")
    if len(plan.kv_groups) > 1 and len(kinds) > 1:
        raise ValueError("layers of several windows have KV caches of different sizes")
    if not plan.kv_groups.groups:
        return ()
    largest = max(plan.kv_groups, key=lambda group: len(group.layers))
    return tuple(plan.kv_layers[number] for number in largest.layers)


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


def copy_blocks(caches: Iterable[LayerCache], pairs: Tensor) -> None:
    """Copy whole blocks, scales too, in every layer.

    ``pairs`` int64 or int32 ``[copies, 2]`` on the caches' device: from, to. All sources are read
    before any target is written, and no block may be the target of two copies.
    """
    source, target = pairs[:, 0].long(), pairs[:, 1].long()
    for cache in caches:
        for array in cache.arrays:
            array.index_copy_(0, target, array.index_select(0, source))
