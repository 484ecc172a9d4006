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


@dataclass(frozen=True)
class LatentCache:
    """Latents of one layer and the rotated keys behind them, ``[num_blocks, 1, BLOCK_SIZE, dim]``.

    Or int8 codes of both, each with scales of its own, one a token, bfloat16 ``[num_blocks, 1,
    BLOCK_SIZE]`` (None otherwise).
    """

    rows: Tensor
    value_dim: int
    """Components of a latent."""
    latent_scales: Tensor | None = None
    key_scales: Tensor | None = None

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """Every array there is; the first dimension of each is the block."""
        three = (self.rows, self.latent_scales, self.key_scales)
        return tuple(array for array in three if array is not None)


Cache = LayerCache | LatentCache


def allocate(
    kv_layers: Iterable[KvLayer], kv_dtype: KvDType, num_blocks: int, device: torch.device
) -> list[Cache]:
    """Caches of ``num_blocks`` blocks, filled with zeros.

    They take ``num_blocks * KvLayer.block_bytes(kv_dtype)`` bytes a layer, less the bytes by which
    that rounds heads and latents up. Raises torch.OutOfMemoryError where the device has too few.
    """
    caches: list[Cache] = []
    for layer in kv_layers:
        tokens = (num_blocks, layer.kv_heads, BLOCK_SIZE)
        rows = (*tokens, layer.head_dim)

        def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        scales: tuple[Tensor | None, Tensor | None] = None, None
        if kv_dtype == "int8":
            scales = zeros(tokens, torch.bfloat16), zeros(tokens, torch.bfloat16)
        keys = zeros(rows, _DTYPES[kv_dtype])
        if layer.value_dim is not None:
            caches.append(LatentCache(keys, layer.value_dim, *scales))
        else:
            caches.append(LayerCache(keys, zeros(rows, _DTYPES[kv_dtype]), *scales))
    return caches
