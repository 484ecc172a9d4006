"""The paged KV cache on a device: each layer's keys and values in blocks of tokens.

A block of one KV head is contiguous, ``[BLOCK_SIZE, head_dim]``, so that a tile of tokens is read
in whole rows, 16 bytes a thread, and one lookup in the block table serves all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.cuda.kernels.codes import as_bytes
from penstock.cache.geometry import BLOCK_SIZE, KvDType, PartDType, is_coded, part_dtypes
from penstock.plan.kv_groups import KvLayer

_DTYPES: dict[PartDType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "int4": torch.uint8,
    "fp8": torch.float8_e4m3fn,
}
"""Element type of the arrays of each cache type; a byte of int4 has two codes."""


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer, ``[num_blocks, kv_heads, BLOCK_SIZE, head_dim]``.

    In bfloat16, float16 or float32; or codes (``kernels/codes.py``), in int4 ``head_dim / 2`` bytes
    of them, whose scales, one a token and KV head, are bfloat16 ``[num_blocks, kv_heads,
    BLOCK_SIZE]`` (None otherwise).
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """Every array there is, to be copied; the first dimension of each is the block."""
        four = (as_bytes(self.keys), as_bytes(self.values), self.key_scales, self.value_scales)
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

        def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        scales: tuple[Tensor | None, Tensor | None] = None, None
        if is_coded(kv_dtype):
            scales = zeros(tokens, torch.bfloat16), zeros(tokens, torch.bfloat16)
        part, other = part_dtypes(kv_dtype)
        keys = zeros((*tokens, _columns(layer, part)), _DTYPES[part])
        if layer.value_dim is not None:
            caches.append(LatentCache(keys, layer.value_dim, *scales))
        else:
            values = zeros((*tokens, _columns(layer, other)), _DTYPES[other])
            caches.append(LayerCache(keys, values, *scales))
    return caches


def _columns(layer: KvLayer, part: PartDType) -> int:
    """Elements of a head's row."""
    return layer.head_dim // 2 if part == "int4" else layer.head_dim
