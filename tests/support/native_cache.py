"""The native KV cache as tests see it: its geometry, and its bytes written by NumPy alone.

Every cache starts as NaN in all bytes; only the slots a sequence owns and may see are written, so a
masked slot that leaks shows up as NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE

F32 = NDArray[np.float32]
DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
LATENT_ELEMENTS = (*DTYPES, "int8")
CODED = ("int8", "int4", "k8v4")
"""Caches of whole numbers."""
SCALED = (*CODED, "fp8")
IN_BFLOAT16 = ("bfloat16", "fp8")
"""Caches whose products are of bfloat16."""
ELEMENTS = (*DTYPES, *SCALED)


def fitted(head_dim: int, element: str) -> int:
    """A size of heads that a cache of these elements takes: the next smaller one, where not all
    even ones are."""
    return head_dim // 8 * 8 if element in ("int4", "k8v4") else head_dim


def elements_of(element: str) -> tuple[str, str]:
    """Those of keys and of values."""
    return ("int8", "int4") if element == "k8v4" else (element, element)


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    element: str = "bfloat16"
    window: int = 0
    value_dim: int = 0  # of a cache of latents
    chunk: int = 0

    def seen_from(self, positions: Any) -> Any:
        """The first position that each of ``positions`` sees."""
        if self.chunk:
            return positions - positions % self.chunk
        return np.maximum(positions - self.window + 1, 0) if self.window else 0 * positions

    @property
    def out_dim(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    def rounded(self, x: F32, *, values: bool = False) -> F32:
        """Keys x ``[..., D]`` as the cache gives them back, or values."""
        element = elements_of(self.element)[values]
        if self.value_dim:
            parts = np.split(x, [self.value_dim], -1)
            return np.concatenate([rounded(part, element) for part in parts], axis=-1)
        turns = is_turned(element, values=values)
        x = rounded(turned(x) if turns else x, element)
        return turned(x) if turns else x


def is_turned(element: str, *, values: bool) -> bool:
    """Whether keys in ``element``, or values, are turned before they are rounded."""
    return element == "int4" or (element == "int8" and not values)


def rounded(x: F32, element: str) -> F32:
    """x ``[..., D]`` as codes of ``element``, or its floats, have it."""
    if element == "int8":
        codes, scales = quantized(x)
    elif element == "int4":
        codes, scales = quantized(x, 8, (-8, 7))
    elif element == "fp8":
        codes, scales = as_float8(x)
    else:
        return x.astype(DTYPES[element]).astype(np.float32)
    wide: F32 = codes.astype(np.float32) * scales.astype(np.float32)[..., None]
    return wide


def coded(x: F32, element: str) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """The bytes that are kept of x ``[..., D]``, turned where it is to be, in a cache of codes, and
    the scales ``[...]``."""
    if element == "int8":
        return quantized(x)
    if element == "fp8":
        codes, scales = as_float8(x)
        return codes.view(np.int8), scales
    codes, scales = quantized(x, 8, (-8, 7))
    low, high = np.split(codes, 2, axis=-1)
    return (low & 15) | (high << 4), scales


def as_float8(x: F32) -> tuple[NDArray[Any], NDArray[Any]]:
    """E4M3 codes ``[..., D]`` and bfloat16 scales ``[...]`` of an FP8 cache."""
    most = np.abs(x).max(-1, initial=0) / np.float32(448)
    scales = np.where(np.isfinite(most), most, np.nan).astype(ml_dtypes.bfloat16)
    wide = scales.astype(np.float32)[..., None]
    codes = np.clip(x / np.where(wide > 0, wide, 1), -448, 448)
    return np.where(wide > 0, codes, 0).astype(ml_dtypes.float8_e4m3fn), scales


def turned(x: F32) -> F32:
    """Heads ``[..., D]`` times the Hadamard matrix of as many rows as divide D, in the order of
    sums that the cache's contract has."""
    run = x.shape[-1] & -x.shape[-1]
    y = x * np.float32(run**-0.5)
    for apart in (2**i for i in range(run.bit_length() - 1)):
        pairs = y.reshape(*x.shape[:-1], -1, 2, apart)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        with np.errstate(invalid="ignore"):  # infinities
            y = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
    return y


def quantized(
    x: F32, steps: int = 127, ends: tuple[int, int] = (-127, 127)
) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Codes ``[..., D]`` and bfloat16 scales ``[...]`` of an INT8 cache, or of smaller codes."""
    most = np.abs(x).max(-1, initial=0) / np.float32(steps)
    scales = np.where(np.isfinite(most), most, np.nan).astype(ml_dtypes.bfloat16)
    wide = scales.astype(np.float32)[..., None]
    codes = np.clip(np.rint(x / np.where(wide > 0, wide, 1)), *ends)
    return np.where(wide > 0, codes, 0).astype(np.int8), scales


class Cache:
    """The physical cache, laid out as csrc/types.h says, from NumPy alone.

    ``tiles`` and ``scales`` are those of keys and those of values, each ``[blocks, kv_heads,
    ...]``, of latents ``[blocks, ...]`` and one alone.
    """

    def __init__(self, shape: Shape, blocks: int) -> None:
        self.shape = shape
        if shape.value_dim:
            quads = shape.element in CODED
            dtype = np.dtype(np.int8 if quads else DTYPES[shape.element])
            self.dim = -(-shape.head_dim // 4) * 4 if quads else -(-shape.head_dim // 2) * 2
            tile = BLOCK_SIZE * self.dim * dtype.itemsize
            part = tile + (4 * BLOCK_SIZE if quads else 0)
            self.bytes = np.full(blocks * part, 0xFF, np.uint8)
            whole = self.bytes.reshape(blocks, part)
            self.tiles = [_view(whole[:, :tile].view(dtype), (blocks, BLOCK_SIZE, self.dim))]
            self.scales = [whole[:, tile:].view(ml_dtypes.bfloat16)]
            return
        sizes = [_tile_bytes(each, shape.head_dim) for each in elements_of(shape.element)]
        behind = 2 * BLOCK_SIZE if shape.element in SCALED else 0
        # All bits set is NaN in every format, and so are the scales of its codes.
        head = sum(sizes) + 2 * behind
        self.bytes = np.full(blocks * shape.kv_heads * head, 0xFF, np.uint8)
        heads = self.bytes.reshape(blocks, shape.kv_heads, head)
        self.tiles, self.scales, start = [], [], 0
        for element, size in zip(elements_of(shape.element), sizes, strict=True):
            dtype = np.dtype(DTYPES.get(element, np.int8))
            self.tiles.append(heads[..., start : start + size].view(dtype))
            end = start + size + behind
            self.scales.append(heads[..., start + size : end].view(ml_dtypes.bfloat16))
            start = end

    def write(self, slots: int | NDArray[np.int32], k: F32, v: F32) -> None:
        """Keys and values ``[tokens, kv_heads, D]`` into ``slots`` ``[tokens]``, or one token's; of
        latents keys alone."""
        block, at = np.divmod(np.atleast_1d(slots), BLOCK_SIZE)
        if self.shape.value_dim:
            return self._write_latents(block, at, k.reshape(len(block), -1))
        outer = len(self.tiles[0]), self.shape.kv_heads
        for part, x in enumerate((k, v)):
            self._write_part(part, block, at, x.reshape(len(block), outer[1], -1), outer)

    def _write_part(
        self, part: int, block: NDArray[Any], at: NDArray[Any], x: Any, outer: tuple[int, int]
    ) -> None:
        element, tiles = elements_of(self.shape.element)[part], self.tiles[part]
        lanes = {"bfloat16": 2, "fp8": 2, "int8": 4, "int4": 4}.get(element, 1)
        if element in SCALED:
            x = turned(x) if is_turned(element, values=part == 1) else x
            x, self.scales[part][block, :, at] = coded(x, element)
        n = x.shape[-1]
        dim = -(-n // lanes) * lanes
        # Where slices lie between indices of tokens, the tokens' dimension comes first.
        if part == 0:
            rows = np.zeros((*x.shape[:2], dim), x.dtype)
            rows[..., :n] = x
            keys = _view(tiles, (*outer, dim // lanes, BLOCK_SIZE, lanes))
            keys[block, :, :, at] = rows.reshape(*x.shape[:2], -1, lanes)
        else:
            values = _view(tiles, (*outer, BLOCK_SIZE // lanes, dim, lanes))
            values[block, :, at // lanes, :n, at % lanes] = x

    def _write_latents(self, block: NDArray[Any], at: NDArray[Any], x: F32) -> None:
        rows = np.zeros((len(x), self.dim), self.tiles[0].dtype)
        if self.shape.element == "int8":
            first = self.shape.value_dim
            rows[:, :first], self.scales[0][block, at] = quantized(x[:, :first])
            rest = slice(first, self.shape.head_dim)
            rows[:, rest], self.scales[0][block, BLOCK_SIZE + at] = quantized(x[:, first:])
        else:
            rows[:, : self.shape.head_dim] = x
        self.tiles[0][block, at] = rows


def _tile_bytes(element: str, dim: int) -> int:
    match element:
        case "int8":
            return BLOCK_SIZE * (-(-dim // 4) * 4)
        case "int4":
            return BLOCK_SIZE * dim // 2
        case "fp8":
            return BLOCK_SIZE * dim
        case _:
            return BLOCK_SIZE * dim * int(np.dtype(DTYPES[element]).itemsize)


def _view(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """``array`` in ``shape``, never a copy: what is written to it must reach the cache."""
    view = array.view()
    view.shape = shape
    return view
