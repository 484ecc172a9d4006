"""Blocks of a cache that lies in the host's memory, as those of a device are moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.engine.block_checksum import block_checksum
from penstock.interface.blocks import BlockBytes, BlockContent, BlockIO, BlockRows, Bytes


@dataclass(frozen=True)
class Moved:
    """``interface.blocks.BlockCopy`` that is done."""

    content: BlockContent
    is_done: bool = True
    seconds: float = 0.0

    def wait(self) -> BlockContent:
        return self.content


class BlocksAtOnce:
    """``interface.blocks.BlockMover`` of an executor that reads and writes blocks between steps: no
    copy is ever on its way. What it takes has checksums, which it compares where they are put."""

    def __init__(self, io: BlockIO) -> None:
        self._io = io

    @property
    def group_bytes(self) -> tuple[int, ...]:
        return self._io.group_bytes

    def memory(self, size: int) -> Bytes:
        return np.empty(size, np.uint8)

    def take(self, group: int, blocks: Sequence[int], rows: Sequence[Bytes] | None = None) -> Moved:
        content = self._io.read(group, blocks)
        if rows is None:
            return Moved(content)
        for row, block in zip(rows, content.data.reshape(len(blocks), -1), strict=True):
            row[:] = block
        return Moved(BlockRows(tuple(rows)))

    def put(self, group: int, blocks: Sequence[int], content: BlockContent) -> Moved:
        """Raises DamagedBlockError as ``BlockIO.write``."""
        if isinstance(content, BlockRows):
            sums = np.array([block_checksum(row) for row in content.rows], np.uint32)
            content = BlockBytes(np.concatenate(content.rows), sums)
        self._io.write(group, blocks, content)
        return Moved(content)

    def close(self) -> None:
        """Nothing is on its way."""
