"""Rows chosen from a buffer, the largest of each row, and blocks of the cache copied."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.tiling import rows_at_once

_SELECT_BLOCK = 1024
_ARGMAX_BLOCK = 2048
_COPY_BLOCK = 1024
_ROWS = rows_at_once(1)


def select_rows(x: Tensor, logit_rows: Tensor, out: Tensor) -> None:
    """Run ``plan.ops.SelectRows``: x ``[T, c]``, out ``[R, c]`` of x's type, logit_rows int32."""
    rows, cols = out.shape
    if rows == 0:
        return
    _select_rows[(triton.cdiv(rows, _ROWS), triton.cdiv(cols, _SELECT_BLOCK))](
        x,
        logit_rows,
        out,
        rows,
        cols,
        x.stride(0),
        out.stride(0),
        ROWS=_ROWS,
        BLOCK=_SELECT_BLOCK,
        num_warps=4,
    )


class Argmax:
    """``plan.ops.Argmax`` of rows of ``cols`` float32: the largest of each chunk, then of these.

    ``winners`` int32 ``[max_rows, 2]`` has each row's outcome once more, and the bits of the logit
    there (a NaN where the row has one): all that the host needs of greedy rows, in one copy.
    """

    def __init__(self, max_rows: int, cols: int, device: torch.device) -> None:
        self._chunks = triton.cdiv(cols, _ARGMAX_BLOCK)
        shape = (max_rows, self._chunks)
        self._keys = torch.empty(shape, dtype=torch.int32, device=device)
        self._columns = torch.empty(shape, dtype=torch.int32, device=device)
        self.winners = torch.empty((max_rows, 2), dtype=torch.int32, device=device)

    @staticmethod
    def scratch_bytes(max_rows: int, cols: int) -> int:
        return 2 * max_rows * (-(-cols // _ARGMAX_BLOCK) + 1) * 4

    def run(self, x: Tensor, out: Tensor) -> None:
        """Find the arg max of rows x ``[R, cols]``, into out int32 ``[R, 1]``."""
        rows, cols = x.shape
        if rows == 0:
            return
        programs = triton.cdiv(rows, _ROWS)
        _largest_of_chunk[(programs, self._chunks)](
            x,
            self._keys,
            self._columns,
            rows,
            cols,
            x.stride(0),
            self._chunks,
            ROWS=_ROWS,
            BLOCK=_ARGMAX_BLOCK,
            num_warps=4,
        )
        _largest_of_row[(programs,)](
            self._keys,
            self._columns,
            out,
            self.winners,
            rows,
            self._chunks,
            out.stride(0),
            ROWS=_ROWS,
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


def move_slots(pairs: Tensor, data: Tensor) -> None:
    """Move tokens within ``data`` ``[num_blocks, kv_heads, BLOCK_SIZE, ...]``, contiguous.

    pairs int32 ``[M, 2]``: slots from and to, on the device, in order: a later pair sees what
    earlier ones wrote.
    """
    if len(pairs) == 0:
        return
    _, heads, block_size = data.shape[:3]
    columns = data[0, 0, 0].numel()
    _move_slots[(heads,)](
        pairs,
        data,
        len(pairs),
        heads,
        block_size,
        columns,
        COLUMNS=triton.next_power_of_2(columns),
        num_warps=1,
    )


@triton.jit(do_not_specialize=["rows"])
def _select_rows(
    x,
    logit_rows,
    out,
    rows,
    cols,
    x_stride,
    out_stride,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows)[:, None] & (column < cols)
    source = tl.load(logit_rows + row, mask=row < rows, other=0).to(tl.int64)
    values = tl.load(x + source[:, None] * x_stride + column, mask=inside)
    tl.store(out + row[:, None] * out_stride + column, values, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _largest_of_chunk(
    x, keys, winners, rows, cols, x_stride, chunks, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    chunk = tl.program_id(1)
    column = (chunk * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows)[:, None] & (column < cols)
    values = tl.load(x + row[:, None] * x_stride + column, mask=inside, other=0.0)
    values = tl.where(values == 0.0, 0.0, values)  # -0 ties with +0
    # As integers in the order of the floats, NaN above all and columns outside below all.
    bits = values.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    key = tl.where(values != values, 0x7FFFFFFF, key)
    key = tl.where(inside, key, -2147483648)
    largest = tl.max(key, axis=1)
    winner = tl.min(tl.where(key == largest[:, None], column, 0x7FFFFFFF), axis=1)
    tl.store(keys + row * chunks + chunk, largest, mask=row < rows)
    tl.store(winners + row * chunks + chunk, winner, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _largest_of_row(
    keys, columns, out, winners, rows, chunks, out_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    chunk = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows)[:, None] & (chunk < chunks)
    place = row[:, None] * chunks + chunk
    key = tl.load(keys + place, mask=inside, other=-2147483648)
    column = tl.load(columns + place, mask=inside, other=0x7FFFFFFF)
    largest = tl.max(key, axis=1)
    first = tl.min(tl.where(key == largest[:, None], column, 0x7FFFFFFF), axis=1)
    tl.store(out + row * out_stride, first, mask=row < rows)
    tl.store(winners + row * 2, first, mask=row < rows)
    bits = tl.where(largest < 0, largest ^ 0x7FFFFFFF, largest)  # of the float that the key was
    tl.store(winners + row * 2 + 1, bits, mask=row < rows)


@triton.jit(do_not_specialize=["count"])
def _move_slots(pairs, data, count, heads, block_size, columns, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    inside = column < columns
    head = tl.program_id(0)
    # A thread moves the same columns of every pair, so it reads what it wrote itself.
    for pair in range(count):
        source = tl.load(pairs + 2 * pair).to(tl.int64)
        target = tl.load(pairs + 2 * pair + 1).to(tl.int64)
        source = (source // block_size * heads + head) * block_size + source % block_size
        target = (target // block_size * heads + head) * block_size + target % block_size
        values = tl.load(data + source * columns + column, mask=inside)
        tl.store(data + target * columns + column, values, mask=inside)


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
