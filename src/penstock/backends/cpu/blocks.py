"""The blocks of the native executor's cache as bytes: those that it has, since the layout of
``interface/blocks.py`` is that of its kernels, which all instruction sets share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.backends.cpu.interface import NativeExecutor
from penstock.interface.blocks import BlockBytes, DamagedBlockError


@dataclass(frozen=True)
class CpuBlocks:
    """``interface.blocks.BlockIO`` of a native executor, on its threads."""

    native: NativeExecutor

    @cached_property
    def group_bytes(self) -> tuple[int, ...]:
        return tuple(self.native.group_bytes)

    def read(self, group: int, blocks: Sequence[int]) -> BlockBytes:
        each = self.group_bytes[group] if 0 <= group < len(self.group_bytes) else 0
        data = np.empty(len(blocks) * each, np.uint8)
        checksums = self.native.read_blocks(group, np.array(blocks, np.int32), data)
        return BlockBytes(data, np.array(checksums, np.uint32))

    def write(self, group: int, blocks: Sequence[int], content: BlockBytes) -> None:
        ids = np.array(blocks, np.int32)
        damaged = self.native.write_blocks(group, ids, content.data, content.checksums)
        if damaged >= 0:
            raise DamagedBlockError(
                f"block {damaged} of {len(blocks)} is not what its checksum says: it was damaged "
                "on its way"
            )
