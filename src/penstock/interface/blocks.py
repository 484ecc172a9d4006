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
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE as BLOCK_SIZE
from penstock.errors import PenstockError

BLOCK_LAYOUT: Final = 1
"""Version of the layout. Who keeps or sends blocks says it, and takes no others."""

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
