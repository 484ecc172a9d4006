"""Rows chosen from a buffer, the largest of each row, and blocks of the cache copied."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_SELECT_BLOCK = 1024
_ARGMAX_BLOCK = 2048
_COPY_BLOCK = 1024


def select_rows(x: Tensor, logit_rows: Tensor, out: Tensor) -> None:
    """``plan.ops.SelectRows``: x ``[T, c]``, out ``[R, c]`` of x's type, logit_rows int32."""
    rows, cols = out.shape
    if rows == 0:
        return
    _select_rows[(rows, triton.cdiv(cols, _SELECT_BLOCK))](
        x, logit_rows, out, cols, x.stride(0), out.stride(0), BLOCK=_SELECT_BLOCK, num_warps=4
    )


class Argmax:
    """``plan.ops.Argmax`` of rows of ``cols`` float32: the largest of each chunk, then of these."""

    def __init__(self, max_rows: int, cols: int, device: torch.device) -> None:
        self._chunks = triton.cdiv(cols, _ARGMAX_BLOCK)
        shape = (max_rows, self._chunks)
        self._keys = torch.empty(shape, dtype=torch.int32, device=device)
        self._columns = torch.empty(shape, dtype=torch.int32, device=device)

    @staticmethod
    def scratch_bytes(max_rows: int, cols: int) -> int:
        return 2 * max_rows * -(-cols // _ARGMAX_BLOCK) * 4

    def run(self, x: Tensor, out: Tensor) -> None:
        """x ``[R, cols]``; out int32 ``[R, 1]``."""
        rows, cols = x.shape
        if rows == 0:
            return
        _largest_of_chunk[(rows, self._chunks)](
            x,
            self._keys,
            self._columns,
            cols,
            x.stride(0),
            self._chunks,
            BLOCK=_ARGMAX_BLOCK,
            num_warps=4,
        )
        _largest_of_row[(rows,)](
            self._keys,
            self._columns,
            out,
            self._chunks,
            out.stride(0),
            BLOCK=triton.next_power_of_2(self._chunks),
            num_warps=1,
        )


def copy_blocks(pairs: Tensor, data: Tensor) -> None:
    """Copy blocks within ``data`` ``[num_blocks, ...]``, contiguous, in the order of ``pairs``.

    pairs int32 ``[C, 2]``: from and to, on the device. A later pair sees what earlier ones wrote.
    """
    if len(pairs) == 0:
        return
    flat = data.view(len(data), -1)
    _copy_blocks[(triton.cdiv(flat.shape[1], _COPY_BLOCK),)](
        pairs, flat, len(pairs), flat.shape[1], BLOCK=_COPY_BLOCK, num_warps=4
    )


@triton.jit
def _select_rows(x, logit_rows, out, cols, x_stride, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    source = tl.load(logit_rows + row).to(tl.int64)
    values = tl.load(x + source * x_stride + columns, mask=inside)
    tl.store(out + row * out_stride + columns, values, mask=inside)


@triton.jit
def _largest_of_chunk(x, keys, winners, cols, x_stride, chunks, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    columns = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0)
    values = tl.where(values == 0.0, 0.0, values)  # -0 ties with +0
    # As integers in the order of the floats, NaN above all and columns outside below all.
    bits = values.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    key = tl.where(values != values, 0x7FFFFFFF, key)
    key = tl.where(inside, key, -2147483648)
    largest = tl.max(key, axis=0)
    winner = tl.min(tl.where(key == largest, columns, 0x7FFFFFFF), axis=0)
    tl.store(keys + row * chunks + chunk, largest)
    tl.store(winners + row * chunks + chunk, winner)


@triton.jit
def _largest_of_row(keys, winners, out, chunks, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < chunks
    key = tl.load(keys + row * chunks + columns, mask=inside, other=-2147483648)
    winner = tl.load(winners + row * chunks + columns, mask=inside, other=0x7FFFFFFF)
    largest = tl.max(key, axis=0)
    tl.store(out + row * out_stride, tl.min(tl.where(key == largest, winner, 0x7FFFFFFF), axis=0))


@triton.jit(do_not_specialize=["count"])
def _copy_blocks(pairs, data, count, block_size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < block_size
    # A thread copies the same places of every pair, so it reads what it wrote itself.
    for pair in range(count):
        source = tl.load(pairs + 2 * pair).to(tl.int64)
        target = tl.load(pairs + 2 * pair + 1).to(tl.int64)
        values = tl.load(data + source * block_size + places, mask=inside)
        tl.store(data + target * block_size + places, values, mask=inside)
