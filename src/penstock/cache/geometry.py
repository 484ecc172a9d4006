"""What cache, scheduler and kernels share: the size of a block, in tokens and in bytes."""

from __future__ import annotations

from typing import Literal

BLOCK_SIZE = 32
"""Tokens per KV block. 32 keys fill two 16-lane score registers and one 64-byte row of pairs."""

KvDType = Literal["float32", "bfloat16", "float16", "int8"]
"""Type of cached keys and values; int8 is codes with a bfloat16 scale per token and KV head."""

_ELEMENT_BYTES: dict[KvDType, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_SCALE_BYTES = 2


def layer_block_bytes(dtype: KvDType, kv_heads: int, head_dim: int) -> int:
    """Bytes of one block's keys and values in one layer, as ``csrc/types.h`` lays them out."""
    if dtype == "int8":
        # Codes lie in fours along the head, and their scales beside them.
        row = -(-head_dim // 4) * 4 + _SCALE_BYTES
    else:
        row = head_dim * _ELEMENT_BYTES[dtype]
    return 2 * kv_heads * row * BLOCK_SIZE
