"""The KV cache of the reference backend: plain arrays by slot, unlike the layouts of kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.backends.reference.products import F32
from penstock.cache.geometry import (
    BLOCK_SIZE,
    KvDType,
    PartDType,
    has_scales,
    part_dtypes,
    rows_dtype,
)
from penstock.plan.kv_groups import KvLayer

_DTYPES: dict[PartDType, Any] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
    "int8": np.int8,
    "int4": np.int8,
    "fp8": ml_dtypes.float8_e4m3fn,
}
_CODES: dict[PartDType, tuple[int, int, int]] = {"int8": (127, -127, 127), "int4": (8, -8, 7)}
"""How many steps the largest magnitude is, the least code and the largest."""


class KvStore:
    """Keys, or values, of one layer: ``[slots, kv_heads, head_dim]`` in the cache's type.

    With int8, int4 and fp8 these are codes, and ``scales`` ``[slots, kv_heads]`` holds theirs in
    bfloat16. Where heads are ``turned`` when they are written, reading turns them back, and where
    they are centered and scaled by ``columns`` ``[2, kv_heads, head_dim]``, it undoes this.
    """

    def __init__(
        self,
        dtype: PartDType,
        num_blocks: int,
        kv_heads: int,
        head_dim: int,
        turned: bool = False,
        columns: F32 | None = None,
    ) -> None:
        slots = num_blocks * BLOCK_SIZE
        self.data: NDArray[Any] = np.zeros((slots, kv_heads, head_dim), _DTYPES[dtype])
        quantized = has_scales(dtype)
        self.scales = np.zeros((slots, kv_heads), ml_dtypes.bfloat16) if quantized else None
        self.dtype: PartDType = dtype
        self._turned = turned
        self._columns = columns

    def write(self, slots: NDArray[np.int32], x: F32) -> None:
        """Store rows ``[n, kv_heads, head_dim]``, rounded to the cache's type."""
        if self._columns is not None:
            x = (x - self._columns[0]) / self._columns[1]
        if self.scales is None:
            self.data[slots] = x.astype(self.data.dtype)
        elif self.dtype == "fp8":
            self.data[slots], self.scales[slots] = float8_heads(x)
        else:
            turned = turn_heads(x) if self._turned else x
            coded = quantize_heads(turned, *_CODES[self.dtype])
            self.data[slots], self.scales[slots] = coded

    def read(self, slots: NDArray[np.int32]) -> F32:
        """Rows ``[n, kv_heads, head_dim]`` as they were rounded."""
        rows = self.data[slots].astype(np.float32)
        if self.scales is None:
            return rows
        result: F32 = rows * self.scales[slots].astype(np.float32)[..., None]
        result = turn_heads(result) if self._turned else result
        return result if self._columns is None else result * self._columns[1] + self._columns[0]

    def move_slot(self, source: int, target: int) -> None:
        for array in (self.data, self.scales):
            if array is not None:
                array[target] = array[source]

    def copy_block(self, source: int, target: int) -> None:
        for array in (self.data, self.scales):
            if array is not None:
                array[_block(target)] = array[_block(source)]


class LatentStore:
    """The latents and rotated keys of one layer: each with scales of its own in int8."""

    def __init__(self, dtype: PartDType, num_blocks: int, head_dim: int, value_dim: int) -> None:
        self._latents = KvStore(dtype, num_blocks, 1, value_dim)
        self._keys = KvStore(dtype, num_blocks, 1, head_dim - value_dim)
        self._value_dim = value_dim

    @property
    def parts(self) -> tuple[KvStore, KvStore]:
        """The latents, and the rotated keys."""
        return self._latents, self._keys

    def write(self, slots: NDArray[np.int32], x: F32) -> None:
        """Store rows ``[n, 1, head_dim]``, rounded to the cache's type."""
        self._latents.write(slots, x[..., : self._value_dim])
        self._keys.write(slots, x[..., self._value_dim :])

    def read(self, slots: NDArray[np.int32]) -> F32:
        """Rows ``[n, 1, head_dim]`` as they were rounded."""
        return np.concatenate([self._latents.read(slots), self._keys.read(slots)], axis=-1)

    def move_slot(self, source: int, target: int) -> None:
        self._latents.move_slot(source, target)
        self._keys.move_slot(source, target)

    def copy_block(self, source: int, target: int) -> None:
        self._latents.copy_block(source, target)
        self._keys.copy_block(source, target)


class RowStore:
    """The rows of one layer, ``[blocks, rows, columns]``: of each block those of its last tokens.

    A row that the next one of its place overwrites is gone; whoever reads a slot knows that it is
    still there.
    """

    def __init__(self, dtype: KvDType, num_blocks: int, rows: int, columns: int) -> None:
        self.data: NDArray[Any] = np.zeros((num_blocks, rows, columns), _DTYPES[rows_dtype(dtype)])

    def rounded(self, x: F32) -> F32:
        """Rows as they will be read."""
        return x.astype(self.data.dtype).astype(np.float32)

    def write(self, slots: NDArray[np.int32], x: F32) -> None:
        """Store rows ``[n, columns]`` in the order of ``slots``, rounded to the cache's type."""
        for slot, row in zip(slots, x.astype(self.data.dtype), strict=True):
            self.data[self._place(slot)] = row

    def read(self, slots: NDArray[np.int32]) -> F32:
        """Rows ``[n, columns]`` as they were rounded."""
        rows: F32 = self.data[self._place(slots)].astype(np.float32)
        return rows

    def move_slot(self, source: int, target: int) -> None:
        self.data[self._place(target)] = self.data[self._place(source)]

    def copy_block(self, source: int, target: int) -> None:
        self.data[target] = self.data[source]

    def _place(self, slots: Any) -> tuple[Any, Any]:
        """Block and row of slots."""
        return slots // BLOCK_SIZE, slots % BLOCK_SIZE % self.data.shape[1]


Store = KvStore | LatentStore | RowStore


def layer_stores(
    layer: KvLayer, dtype: KvDType, num_blocks: int, columns: F32 | None = None
) -> tuple[Store, ...]:
    """The keys and values of a layer, or its latents or rows alone. ``columns``: centers and
    factors of keys ``[2, kv_heads, head_dim]``."""
    if layer.rows is not None:
        return (RowStore(dtype, num_blocks, layer.rows, layer.head_dim),)
    keys, values = part_dtypes(dtype)
    if layer.value_dim is not None:
        return (LatentStore(keys, num_blocks, layer.head_dim, layer.value_dim),)
    shape = (num_blocks, layer.kv_heads, layer.head_dim)
    return (
        KvStore(keys, *shape, turned=keys in ("int8", "int4"), columns=columns),
        KvStore(values, *shape, turned=values == "int4"),
    )


def turn_heads(x: F32) -> F32:
    """Heads ``[..., head_dim]`` turned, or turned back, as ``plan.ops.KvWrite`` says."""
    dim = x.shape[-1]
    run = dim & -dim
    turned = x * np.float32(run**-0.5)
    apart = 1
    while apart < run:
        pairs = turned.reshape(*x.shape[:-1], -1, 2, apart)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        with np.errstate(invalid="ignore"):  # infinities have no difference
            turned = np.stack([first + second, first - second], axis=-2).reshape(x.shape)
        apart *= 2
    return turned


def quantize_heads(
    x: F32, steps: int = 127, least: int = -127, most_code: int = 127
) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Codes in ``least .. most_code`` and bfloat16 scales of heads ``[..., head_dim]``, as
    ``plan.ops.KvWrite`` says."""
    most = np.abs(x).max(axis=-1)
    scales = np.where(np.isfinite(most), most, np.nan) / np.float32(steps)
    rounded = scales.astype(ml_dtypes.bfloat16)
    divisor = rounded.astype(np.float32)[..., None]
    usable = divisor > 0
    codes = np.clip(np.rint(x / np.where(usable, divisor, np.float32(1))), least, most_code)
    return np.where(usable, codes, 0).astype(np.int8), rounded


def float8_heads(x: F32) -> tuple[NDArray[Any], NDArray[Any]]:
    """E4M3 codes and bfloat16 scales of heads ``[..., head_dim]``, as ``plan.ops.KvWrite`` says."""
    most = np.abs(x).max(axis=-1)
    scales = np.where(np.isfinite(most), most, np.nan) / np.float32(448)
    rounded = scales.astype(ml_dtypes.bfloat16)
    divisor = rounded.astype(np.float32)[..., None]
    usable = divisor > 0
    codes = np.clip(x / np.where(usable, divisor, np.float32(1)), -448, 448)
    return np.where(usable, codes, 0).astype(ml_dtypes.float8_e4m3fn), rounded


def _block(index: int) -> slice:
    return slice(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE)
