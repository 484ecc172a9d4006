"""Parts of all kernels over the heads of tokens: pairs that are rotated, and the cache write."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.codes import (
    as_bytes,
    columns_of,
    kind_of_keys,
    kind_of_values,
    run_of,
    store_part,
)


class LayerArrays(Protocol):
    """The arrays of a layer's cache that are written; ``cache.LayerCache`` has them."""

    @property
    def keys(self) -> Tensor: ...

    @property
    def values(self) -> Tensor: ...

    @property
    def key_scales(self) -> Tensor | None: ...

    @property
    def value_scales(self) -> Tensor | None: ...


class Written(NamedTuple):
    """A layer's cache as kernels that write it are given it."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    """Where there are none, an array that nothing is written to."""
    value_scales: Tensor
    kv_heads: int
    head_dim: int
    constants: dict[str, int | bool]
    """What ``store_heads`` is compiled with."""

    @classmethod
    def of(cls, cache: LayerArrays) -> Written:
        keys, values = as_bytes(cache.keys), as_bytes(cache.values)
        quantized = cache.key_scales is not None and cache.value_scales is not None
        head_dim = columns_of(cache.keys)
        run = run_of(head_dim)
        constants = {
            "KV_HEADS": cache.keys.shape[1],
            "HEAD_DIM": head_dim,
            "RUN": run,
            "LEVELS": run.bit_length() - 1,
            "KEY_KIND": kind_of_keys(cache.keys),
            "VALUE_KIND": kind_of_values(cache.values),
            "QUANTIZED": quantized,
        }
        return cls(
            keys,
            values,
            keys if cache.key_scales is None else cache.key_scales,
            values if cache.value_scales is None else cache.value_scales,
            cache.keys.shape[1],
            head_dim,
            constants,
        )


@triton.jit
def partners(column, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return for each component of a head whether it is the first of a pair, which is the other,
    and which of the HALF pairs it is. A component that is not rotated is its own partner."""
    turned = column < 2 * HALF
    if INTERLEAVED:
        first = column % 2 == 0
        partner = tl.where(turned, column ^ 1, column)
        pair = column // 2
    else:
        first = column < HALF
        partner = tl.where(first, column + HALF, tl.where(turned, column - HALF, column))
        pair = tl.where(first, column, column - HALF)
    return first, partner, pair


@triton.jit
def store_heads(
    x,
    keys,
    values,
    key_scales,
    value_scales,
    slot,
    kv_head,
    is_key,
    is_value,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    RUN: tl.constexpr,
    LEVELS: tl.constexpr,
    KEY_KIND: tl.constexpr,
    VALUE_KIND: tl.constexpr,
    QUANTIZED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Write float32 heads x ``[N, BLOCK]`` to ``slot`` and ``kv_head`` ``[N]`` of the cache.

    Those that are keys go among the keys, those that are values among the values, others nowhere.
    """
    row = (slot // BLOCK_SIZE * KV_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
    store_part(
        x, keys, key_scales, row, is_key, HEAD_DIM, RUN, LEVELS, KEY_KIND, QUANTIZED, INTERPRETED
    )
    store_part(
        x,
        values,
        value_scales,
        row,
        is_value,
        HEAD_DIM,
        RUN,
        LEVELS,
        VALUE_KIND,
        QUANTIZED,
        INTERPRETED,
    )
