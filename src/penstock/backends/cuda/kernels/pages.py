"""Blocks of a paged cache gathered into one piece each, and put back."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_WORDS = 1024
"""Words of 4 bytes that a program copies: 16 bytes for each of two rounds of 128 threads."""


class PageTable:
    """Where the parts of a block lie: one in each of several arrays of ``[num_blocks, ...]``,
    contiguous, whose blocks are multiples of 16 bytes.

    A block's *piece* has them one behind the other. Arrays are read by their addresses, so that one
    launch serves all of them; they must outlive the table.
    """

    def __init__(self, arrays: list[Tensor]) -> None:
        sizes = [array[0].numel() * array.element_size() for array in arrays]
        if any(size % 16 for size in sizes):
            raise ValueError(f"parts of blocks of {sizes} bytes are no multiples of 16 bytes")
        self.piece_bytes = sum(sizes)
        """Bytes of a block's piece."""
        rows, offset = [], 0
        for array, size in zip(arrays, sizes, strict=True):
            rows.append((array.data_ptr(), size // 4, offset // 4))
            offset += size
        self._table = torch.tensor(rows, dtype=torch.int64, device=arrays[0].device)
        self._programs = triton.cdiv(max(sizes) // 4, _WORDS)

    def gather(self, blocks: Tensor, pieces: Tensor) -> None:
        """Copy blocks into ``pieces`` ``[n, piece_bytes / 4]`` int32, contiguous.

        blocks int32 ``[n]``, on the device.
        """
        self._copy(blocks, pieces, put=False)

    def scatter(self, blocks: Tensor, pieces: Tensor) -> None:
        """Copy ``pieces`` into blocks, all different; as :meth:`gather`."""
        self._copy(blocks, pieces, put=True)

    def _copy(self, blocks: Tensor, pieces: Tensor, put: bool) -> None:
        if len(blocks) == 0:
            return
        _copy_pages[(self._programs, len(self._table), len(blocks))](
            self._table, blocks, pieces, self.piece_bytes // 4, PUT=put, WORDS=_WORDS, num_warps=4
        )


@triton.jit
def _copy_pages(table, blocks, pieces, piece_words, PUT: tl.constexpr, WORDS: tl.constexpr):
    part = tl.program_id(1)
    number = tl.program_id(2).to(tl.int64)
    array = tl.load(table + part * 3).to(tl.pointer_type(tl.int32))
    size = tl.load(table + part * 3 + 1)
    offset = tl.load(table + part * 3 + 2)
    block = tl.load(blocks + number).to(tl.int64)
    # All parts are multiples of 16 bytes, and so are the places of blocks and pieces.
    page = tl.multiple_of(array + block * size, 16)
    piece = tl.multiple_of(pieces + number * piece_words + offset, 16)
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    inside = word < tl.multiple_of(size, 4)
    if PUT:
        tl.store(page + word, tl.load(piece + word, mask=inside), mask=inside)
    else:
        tl.store(piece + word, tl.load(page + word, mask=inside), mask=inside)
