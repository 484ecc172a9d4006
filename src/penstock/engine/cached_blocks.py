"""Blocks of an engine's KV cache by their content: read out of it as bytes, and written into it.

The books (``cache/keyed_blocks.py``) and the memory (``interface/blocks.py``) together. A block's
key says what its tokens are and what came before them; that another engine would have computed the
same bits for it is for the caller to know (``engine/block_identity.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from penstock.cache.geometry import Window
from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import Key
from penstock.engine.blocks_at_once import BlocksAtOnce, Moved
from penstock.errors import ConfigError
from penstock.interface.blocks import (
    BlockBytes,
    BlockContent,
    BlockCopy,
    BlockIO,
    BlockMover,
    BlockRows,
    Bytes,
)
from penstock.plan.plan import Plan


class CachedBlocks:
    """Belongs to the thread that steps the engine, and is used between steps."""

    def __init__(self, cache: KvCache, memory: BlockIO | BlockMover) -> None:
        self._cache = cache
        self.is_beside = isinstance(memory, BlockMover)
        """Whether blocks are copied while steps run, and by nobody who takes part in these."""
        self.mover: BlockMover = memory if isinstance(memory, BlockMover) else BlocksAtOnce(memory)

    @cached_property
    def group_bytes(self) -> tuple[int, ...]:
        """Bytes of a block, for each group of layers."""
        return self.mover.group_bytes

    @property
    def windows(self) -> tuple[Window | None, ...]:
        """What tokens see of a sequence, in each group; None: all before them."""
        return self._cache.windows

    @property
    def block_size(self) -> int:
        return self._cache.block_size

    @property
    def num_blocks(self) -> int:
        return self._cache.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return self._cache.keyed.num_free

    def has(self, key: Key, group: int) -> bool:
        return self._cache.keyed.find(key, group) is not None

    def num_found(self, keys: Sequence[Key], group: int) -> int:
        """How many of the ``keys``, from the first on, have a block of this group."""
        for i, key in enumerate(keys):
            if self._cache.keyed.find(key, group) is None:
                return i
        return len(keys)

    def take(
        self, keys: Sequence[Key], group: int, rows: Sequence[Bytes] | None = None
    ) -> BlockCopy:
        """Copy the blocks of this group whose content has these keys out of the cache, as
        ``BlockMover.take``. Raises KeyError if one is not there."""
        blocks = []
        for key in keys:
            block = self._cache.keyed.find(key, group)
            if block is None:
                raise KeyError(key)
            blocks.append(block)
        return self.mover.take(group, blocks, rows)

    def put(self, keys: Sequence[Key], group: int, content: BlockContent) -> BlockCopy:
        """Copy blocks into the cache, to be found by these keys from now on.

        They take free blocks, of which there must be so many, and nobody owns them: they stay until
        they are reused. Raises DamagedBlockError or ValueError as ``BlockIO.write``; the cache is
        as before then.
        """
        each = self.group_bytes[group]
        check_content(content, len(keys), each)
        copies: list[BlockCopy] = []

        def write(places: Sequence[int], blocks: list[int]) -> None:
            part = content if len(places) == len(keys) else _picked(content, places, each)
            copies.append(self.mover.put(group, blocks, part))

        self._cache.keyed.adopt(keys, group, write)
        return copies[0] if copies else Moved(content)

    def read(self, keys: Sequence[Key], group: int) -> BlockBytes:
        """The blocks of a cache in the host's memory, with their checksums, as :meth:`take`."""
        content = self.take(keys, group).wait()
        assert isinstance(content, BlockBytes), "a device's blocks have no checksums"
        return content

    def write(self, keys: Sequence[Key], group: int, content: BlockBytes) -> None:
        """As :meth:`put`, and wait for it."""
        self.put(keys, group, content).wait()

    def renew(self, keys: Sequence[Key], group: int) -> None:
        """Keep these blocks, a chain, longest of all that nobody holds."""
        self._cache.keyed.renew(keys, group)


def check_content(content: BlockContent, count: int, each: int) -> None:
    """Raise ValueError unless these are so many blocks of ``each`` bytes."""
    if isinstance(content, BlockRows):
        suits = len(content.rows) == count and all(len(row) == each for row in content.rows)
        size = sum(map(len, content.rows))
    else:
        size = len(content.data)
        suits = size == each * count and len(content.checksums) == count
    if not suits:
        raise ValueError(f"{count} blocks of {each} bytes are not {size} bytes")


def _picked(content: BlockContent, places: Sequence[int], each: int) -> BlockContent:
    """Some of several blocks of ``each`` bytes."""
    if isinstance(content, BlockRows):
        return BlockRows(tuple(content.rows[place] for place in places))
    rows = content.data.reshape(-1, each)[places].reshape(-1)
    return BlockBytes(rows, content.checksums[np.array(places)])


def check_exchange(
    plan: Plan, backend: str, ranks: int, stages: int, prefix_caching: bool, what: str
) -> None:
    """Raise ConfigError where ``what`` (a phrase: "--role decode") exchanges blocks with other
    engines, and one of this ``plan`` does not give or take them."""
    check_kept(plan, ranks, stages, prefix_caching, what)
    if backend == "cuda":
        raise ConfigError(
            "blocks of the cuda backend's KV cache are not exchanged with other engines yet; "
            f"choose --backend cpu, or start without {what}"
        )


def check_kept(plan: Plan, ranks: int, stages: int, prefix_caching: bool, what: str) -> None:
    """Raise ConfigError where ``what`` keeps blocks as bytes, and an engine of this ``plan`` does
    not give or take them."""
    if not prefix_caching:
        raise ConfigError(f"{what} finds blocks by their content; leave prefix caching on")
    if plan.state_layers:
        raise ConfigError(
            f"{plan.spec.architecture} has layers that keep a state of a sequence in place of its "
            f"keys and values, which is not copied yet; start without {what}"
        )
    if not plan.kv_layers:
        raise ConfigError(
            f"{plan.spec.architecture} caches nothing of a prompt that could be copied; start "
            f"without {what}"
        )
    if ranks > 1:
        raise ConfigError(
            f"blocks of an engine of several ranks cannot be copied yet; start with "
            f"tensor_parallel 1, or without {what}"
        )
    if stages > 1:
        raise ConfigError(
            f"blocks of an engine of several stages cannot be copied yet; start with "
            f"pipeline_parallel 1, or without {what}"
        )
