"""Blocks of a KV cache as bytes: what one executor reads, another one writes, whatever they are.

A *block* holds what the layers of one group (``Plan.kv_groups``) cache of :data:`BLOCK_SIZE`
tokens. Its bytes, in layout :data:`BLOCK_LAYOUT`, are those of the group's layers one behind the
other, in the order of their numbers, without anything between them. They depend on the model and on
the type of the cache, never on a backend or an instruction set. Numbers are little-endian. Of a
layer that caches

- keys and values: for each KV head its keys, then its values. With ``D`` components and runs of
  ``n``, keys lie as ``[D / n][32][n]`` (runs of components, tokens, components of a run) and values
  as ``[32 / n][D][n]`` (runs of tokens, components, tokens of a run). ``n`` is 1 for float32 and
  float16, 2 for bfloat16 and fp8 (E4M3), 4 for int8 and int4. An int4 byte has the code of
  component d in its low half and that of component d + D/2 in its high half, and counts as one
  component; int8's D is rounded up to a multiple of 4. Behind the keys and behind the values, where
  they are codes, are their scales: one bfloat16 for each of the 32 tokens. ``k8v4`` has keys as
  int8 and values as int4.
- latents: a row for each token, ``[32][D]``, D rounded up to an even number, for int8 to a multiple
  of 4. Behind rows of codes lie the 32 scales of the latents and the 32 of the rotated keys.
- rows (of convolutions): ``[rows][D]``, D rounded up to a multiple of 16.

Bytes that rounding up adds mean nothing. What is kept of codes (turned, centered and scaled heads)
is said by ``plan.ops.KvWrite``; bits are kept as they are.

A block has a CRC-32C over its bytes, which its writer checks.

An executor whose memory is the host's gives and takes blocks between steps (:class:`BlockIO`). One
whose memory is a device's copies them beside the steps (:class:`BlockMover`), as they lie there:
in a layout of its own (:data:`DEVICE_LAYOUT`), which nobody but an engine of the same kind reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE as BLOCK_SIZE
from penstock.errors import PenstockError

BLOCK_LAYOUT: Final = 1
"""Version of the layout. Who keeps or sends blocks says it, and takes no others."""
DEVICE_LAYOUT: Final = 2
"""The layout of blocks as the cuda backend's cache has them: of each layer the arrays of its cache
(``backends.cuda.cache``) one behind the other, layer behind layer, in the order of their numbers.
An array's part is ``[kv_heads, 32, components]``, of scales ``[kv_heads, 32]``."""

Bytes = NDArray[np.uint8]
Checksums = NDArray[np.uint32]


class DamagedBlockError(PenstockError):
    """The bytes of a block are not those of its checksum."""


class BlockBytes(NamedTuple):
    """Blocks of one group, one behind the other."""

    data: Bytes
    """``[blocks * bytes of a block]``."""
    checksums: Checksums
    """CRC-32C of each block."""

    @classmethod
    def none(cls) -> BlockBytes:
        """No blocks."""
        return cls(np.empty(0, np.uint8), np.empty(0, np.uint32))


class BlockIO(Protocol):
    """Reads and writes the blocks of an executor's cache. Not while a step runs; only the thread
    that submits steps may call it."""

    @property
    def group_bytes(self) -> tuple[int, ...]:
        """Bytes of one block, for each group of layers."""
        ...

    def read(self, group: int, blocks: Sequence[int]) -> BlockBytes:
        """Return a copy of these blocks, which are of this group. Raises ValueError for a group or
        a block that there is not."""
        ...

    def write(self, group: int, blocks: Sequence[int], content: BlockBytes) -> None:
        """Overwrite these blocks.

        Raises DamagedBlockError where a checksum is not that of its block, and ValueError for a
        group or block that there is not or a number of bytes that is not theirs; nothing is written
        then.
        """
        ...


class BlockRows(NamedTuple):
    """Blocks of one group, each wherever it lies in the host's memory. They have no checksums."""

    rows: tuple[Bytes, ...]
    """``[bytes of a block]``, for each block."""


BlockContent = BlockBytes | BlockRows


class BlockCopy(Protocol):
    """Blocks that are on their way between an executor's cache and the host's memory."""

    @property
    def is_done(self) -> bool: ...

    @property
    def seconds(self) -> float:
        """How long the copy took, without what it waited for; 0 until it is done, or where that is
        not measured."""
        ...

    def wait(self) -> BlockContent:
        """Block until the copy is done; returns the blocks. Raises EngineDeadError where the device
        fails."""
        ...


@runtime_checkable
class BlockMover(Protocol):
    """Copies blocks of an executor's cache while steps run. Only the thread that submits steps may
    call it, but for :meth:`memory`.

    A copy stands in the order of the steps as if it were made at once, between those that were
    submitted before and those that are submitted later: these wait for it, or it for those, where
    both touch the same block, and for nothing else. Checksums are the caller's: nobody compares
    them here.
    """

    @property
    def group_bytes(self) -> tuple[int, ...]:
        """Bytes of one block, for each group of layers."""
        ...

    def memory(self, size: int) -> Bytes:
        """Memory of the host, ``[size]`` bytes of any content, out of which the device copies by
        itself. It is given back with its last view. Any thread. Raises MemoryError where the system
        has not so much of it."""
        ...

    def take(
        self, group: int, blocks: Sequence[int], rows: Sequence[Bytes] | None = None
    ) -> BlockCopy:
        """Copy these blocks, which are of this group, into ``rows``, or into memory of the copy's
        own, whose views may be kept.

        The rows are of :meth:`memory`, contiguous and of the size of a block, and nobody touches
        them before the copy is done. Raises ValueError for a group or a block that there is not, or
        rows that do not suit them.
        """
        ...

    def put(self, group: int, blocks: Sequence[int], content: BlockContent) -> BlockCopy:
        """Overwrite these blocks. The bytes must stay as they are until the copy is done. Raises
        ValueError as :meth:`take`."""
        ...

    def close(self) -> None:
        """Wait for all copies; none can be made afterwards."""
        ...
