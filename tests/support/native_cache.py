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
ELEMENTS = (*LATENT_ELEMENTS, "int4")
CODED = ("int8", "int4")


def fitted(head_dim: int, element: str) -> int:
    """A size of heads that a cache of these elements takes: the next smaller one, where not all
    even ones are."""
    return head_dim // 8 * 8 if element == "int4" else head_dim


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

    def rounded(self, x: F32) -> F32:
        """x ``[..., D]`` as the cache gives it back."""
        if self.element == "int8":
            cuts = [self.value_dim] if self.value_dim else []
            parts = [quantized(part) for part in np.split(x, cuts, axis=-1)]
            return np.concatenate([c * s.astype(np.float32)[..., None] for c, s in parts], axis=-1)
        if self.element == "int4":
            codes, scales = quantized(turned(x), 8, (-8, 7))
            return turned(codes * scales.astype(np.float32)[..., None])
        return x.astype(DTYPES[self.element]).astype(np.float32)

    def coded(self, x: F32) -> tuple[NDArray[np.int8], NDArray[Any]]:
        """What is kept of x ``[..., D]`` in a cache of codes, and the scales ``[...]``."""
        if self.element == "int8":
            return quantized(x)
        codes, scales = quantized(turned(x), 8, (-8, 7))
        low, high = np.split(codes, 2, axis=-1)
        return (low & 15) | (high << 4), scales


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
    """The physical cache, laid out as csrc/types.h says, from NumPy alone."""

    def __init__(self, shape: Shape, blocks: int) -> None:
        self.shape = shape
        quads = shape.element in CODED
        dtype = np.dtype(np.int8 if quads else DTYPES[shape.element])
        if shape.value_dim:
            self.dim = -(-shape.head_dim // 4) * 4 if quads else -(-shape.head_dim // 2) * 2
            tile = BLOCK_SIZE * self.dim * dtype.itemsize
            part = tile + (4 * BLOCK_SIZE if quads else 0)
            self.bytes = np.full(blocks * part, 0xFF, np.uint8)
            whole = self.bytes.reshape(blocks, part)
            self.tiles = _view(whole[:, :tile].view(dtype), (blocks, BLOCK_SIZE, self.dim))
            self.scales = whole[:, tile:].view(ml_dtypes.bfloat16)
            return
        self.dim = -(-shape.head_dim // 4) * 4 if quads else shape.head_dim
        if shape.element == "int4":
            self.dim = shape.head_dim // 2  # bytes
        tile = BLOCK_SIZE * self.dim * dtype.itemsize
        part = tile + (2 * BLOCK_SIZE if quads else 0)
        # All bits set is NaN in every format, and so are the scales of its codes.
        self.bytes = np.full(blocks * shape.kv_heads * 2 * part, 0xFF, np.uint8)
        parts = self.bytes.reshape(blocks, shape.kv_heads, 2, part)
        self.tiles = parts[..., :tile].view(dtype)
        self.scales = parts[..., tile:].view(ml_dtypes.bfloat16)

    def write(self, slots: int | NDArray[np.int32], k: F32, v: F32) -> None:
        """Keys and values ``[tokens, kv_heads, D]`` into ``slots`` ``[tokens]``, or one token's; of
        latents keys alone."""
        block, at = np.divmod(np.atleast_1d(slots), BLOCK_SIZE)
        if self.shape.value_dim:
            return self._write_latents(block, at, k.reshape(len(block), -1))
        tokens, dim = len(block), self.dim
        outer = len(self.tiles), self.shape.kv_heads
        k, v = k.reshape(tokens, outer[1], -1), v.reshape(tokens, outer[1], -1)
        keys, values = self.tiles[:, :, 0], self.tiles[:, :, 1]
        # Where slices lie between indices of tokens, the tokens' dimension comes first.
        if self.shape.element == "bfloat16":
            pairs = k.reshape(tokens, outer[1], -1, 2)
            _view(keys, (*outer, dim // 2, BLOCK_SIZE, 2))[block, :, :, at] = pairs
            _view(values, (*outer, BLOCK_SIZE // 2, dim, 2))[block, :, at // 2, :, at % 2] = v
        elif self.shape.element in CODED:
            n = self.shape.head_dim if self.shape.element == "int8" else dim
            codes = np.zeros((tokens, outer[1], dim), np.int8)
            codes[..., :n], self.scales[block, :, 0, at] = self.shape.coded(k)
            quads = _view(keys, (*outer, dim // 4, BLOCK_SIZE, 4))
            quads[block, :, :, at] = codes.reshape(tokens, outer[1], -1, 4)
            codes, self.scales[block, :, 1, at] = self.shape.coded(v)
            by_four = _view(values, (*outer, BLOCK_SIZE // 4, dim, 4))
            by_four[block, :, at // 4, :n, at % 4] = codes
        else:
            _view(keys, (*outer, dim, BLOCK_SIZE))[block, :, :, at] = k
            _view(values, (*outer, BLOCK_SIZE, dim))[block, :, at] = v

    def _write_latents(self, block: NDArray[Any], at: NDArray[Any], x: F32) -> None:
        rows = np.zeros((len(x), self.dim), self.tiles.dtype)
        if self.shape.element == "int8":
            first = self.shape.value_dim
            rows[:, :first], self.scales[block, at] = quantized(x[:, :first])
            rest = slice(first, self.shape.head_dim)
            rows[:, rest], self.scales[block, BLOCK_SIZE + at] = quantized(x[:, first:])
        else:
            rows[:, : self.shape.head_dim] = x
        self.tiles[block, at] = rows


def _view(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """``array`` in ``shape``, never a copy: what is written to it must reach the cache."""
    view = array.view()
    view.shape = shape
    return view
