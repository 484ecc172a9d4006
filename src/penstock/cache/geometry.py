"""The size of a KV cache block in tokens and bytes, which cache, scheduler and kernels share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard, get_args

BLOCK_SIZE = 32
"""Tokens per KV block. 32 keys fill two 16-lane score registers and one 64-byte row of pairs."""

MOST_BLOCKS = (2**31 - 1) // BLOCK_SIZE
"""Most blocks of a KV cache: kernels number their slots, one for each token, in 32 bits."""

FloatDType = Literal["float32", "bfloat16", "float16"]
CodeDType = Literal["int8", "int4", "fp8"]
PartDType = FloatDType | CodeDType
"""Type of cached keys alone, or of values alone. Codes have bfloat16 scales, one per token and KV
head; ``plan.ops.KvWrite`` says what they are of."""

KvDType = Literal["float32", "bfloat16", "float16", "int8", "fp8", "k8v4", "int4"]
"""Type of cached keys and values, or latents and rotated keys: one for both, or ``k8v4``, keys in
int8 and values in int4. Latents in codes have two scales per token, one of the latent and one of
the rotated key."""

_FLOAT_BYTES: dict[PartDType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_SCALE_BYTES = 2


def part_dtypes(dtype: KvDType) -> tuple[PartDType, PartDType]:
    """The types of keys and of values."""
    if dtype == "k8v4":
        return "int8", "int4"
    return dtype, dtype


def has_scales(dtype: PartDType) -> TypeGuard[CodeDType]:
    """Whether what is cached are codes and their scales."""
    return dtype in get_args(CodeDType)


def is_coded(dtype: KvDType) -> bool:
    """Whether keys and values are cached as codes and their scales."""
    return all(has_scales(part) for part in part_dtypes(dtype))


def code_bytes(dtype: CodeDType, dim: int) -> int:
    """Bytes of the codes of so many components. They lie in fours, of int4 two in a byte, but fp8's
    lie in pairs."""
    match dtype:
        case "int8":
            return -(-dim // 4) * 4
        case "int4":
            return -(-dim // 8) * 4
        case "fp8":
            return -(-dim // 2) * 2


def layer_block_bytes(dtype: KvDType, kv_heads: int, head_dim: int) -> int:
    """Bytes of one block's keys and values in one layer, as ``csrc/types.h`` lays them out."""
    return sum(_part_bytes(part, head_dim, head_dim, 1) for part in part_dtypes(dtype)) * kv_heads


def latent_block_bytes(dtype: KvDType, latent_dim: int, rope_dim: int) -> int:
    """Bytes of one block in a layer that caches latents, and rotated keys behind them."""
    dim = latent_dim + rope_dim
    return _part_bytes(part_dtypes(dtype)[0], dim, -(-dim // 2) * 2, 2)


def _part_bytes(dtype: PartDType, dim: int, padded: int, scales: int) -> int:
    """Bytes of a block of one head's rows: of ``padded`` floats, or of codes and scales."""
    if has_scales(dtype):
        return (code_bytes(dtype, dim) + scales * _SCALE_BYTES) * BLOCK_SIZE
    return padded * _FLOAT_BYTES[dtype] * BLOCK_SIZE


ROW_LANES = 16
"""Columns of cached rows are padded to a multiple of these, a register of kernels."""


def float_dtype(dtype: KvDType, otherwise: FloatDType) -> FloatDType:
    """The type of what lies beside keys and values and is never rounded to codes: theirs, or
    ``otherwise`` where they are codes."""
    if dtype == "float32" or dtype == "bfloat16" or dtype == "float16":
        return dtype
    return otherwise


def rows_dtype(dtype: KvDType) -> FloatDType:
    """The type of rows in a cache of this type."""
    return float_dtype(dtype, otherwise="bfloat16")


def rows_block_bytes(dtype: KvDType, rows: int, columns: int) -> int:
    """Bytes of one block in a layer that keeps so many rows of it."""
    padded = -(-columns // ROW_LANES) * ROW_LANES
    return rows * padded * _FLOAT_BYTES[rows_dtype(dtype)]


@dataclass(frozen=True)
class Chunk:
    """A sequence is cut into chunks of ``size`` tokens, of which each sees its own alone."""

    size: int


Window = int | Chunk
"""What tokens of a layer see of a sequence: so many of the latest, themselves included, or what is
before them in their chunk."""


def window_size(window: Window) -> int:
    """Return how many tokens one token sees at most, itself included."""
    return window.size if isinstance(window, Chunk) else window


def first_seen(window: Window, position: int) -> int:
    """Return the first position that the token at ``position``, or any after it, sees."""
    if isinstance(window, Chunk):
        return position - position % window.size
    return max(position - window + 1, 0)


def window_blocks(window: Window, block_size: int = BLOCK_SIZE) -> int:
    """Return how many blocks at most hold what a token sees within its window, and what is before
    that in the same blocks."""
    size = window_size(window)
    # As far from the beginning of a block the first token that is seen may lie.
    grain = math.gcd(size, block_size) if isinstance(window, Chunk) else 1
    return (block_size - grain + size - 1) // block_size + 1


def first_seen_block(window: Window, position: int, block_size: int = BLOCK_SIZE) -> int:
    """Return the first block of which the token at ``position``, or any after it, sees a part."""
    return first_seen(window, position) // block_size


def is_seen_behind(window: Window, block: int, block_size: int = BLOCK_SIZE) -> bool:
    """Whether any prefix of whole blocks is continued by a token that sees some of ``block``; of
    chunks the last block is seen by none."""
    return first_seen_block(window, (block + 1) * block_size, block_size) <= block


def unseen_from(window: Window, block: int, block_size: int = BLOCK_SIZE) -> int:
    """Return the first position from which on no token sees any of ``block``."""
    end = (block + 1) * block_size
    if isinstance(window, Chunk):
        return -(-end // window.size) * window.size
    return end + window - 1


def sequence_blocks(
    windows: Sequence[Window | None], num_tokens: int, block_size: int = BLOCK_SIZE
) -> int:
    """Return how many blocks a sequence of so many tokens keeps in groups with these windows (None:
    no window).

    A step that computes many of them at once takes more until it is done.
    """
    places = -(-num_tokens // block_size)
    return sum(places if w is None else min(places, window_blocks(w, block_size)) for w in windows)


def tokens_in(windows: Sequence[Window | None], num_blocks: int, most: int) -> int:
    """Return the length, in whole blocks, of the longest sequence that ``num_blocks`` can hold; at
    most ``most``, rounded up to whole blocks."""
    low, high = 0, -(-most // BLOCK_SIZE)
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_blocks(windows, middle * BLOCK_SIZE) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low * BLOCK_SIZE
