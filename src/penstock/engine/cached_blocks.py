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
from penstock.errors import ConfigError
from penstock.interface.blocks import BlockBytes, BlockIO
from penstock.plan.plan import Plan


class CachedBlocks:
    """Belongs to the thread that steps the engine, and is used between steps."""

    def __init__(self, cache: KvCache, memory: BlockIO) -> None:
        self._cache = cache
        self._memory = memory

    @cached_property
    def group_bytes(self) -> tuple[int, ...]:
        """Bytes of a block, for each group of layers."""
        return self._memory.group_bytes

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

    def read(self, keys: Sequence[Key], group: int) -> BlockBytes:
        """The blocks of this group whose content has these keys. Raises KeyError if one is not
        there."""
        blocks = []
        for key in keys:
            block = self._cache.keyed.find(key, group)
            if block is None:
                raise KeyError(key)
            blocks.append(block)
        return self._memory.read(group, blocks)

    def write(self, keys: Sequence[Key], group: int, content: BlockBytes) -> int:
        """Put blocks into the cache, to be found by these keys; returns how many were not there.

        They take free blocks, of which there must be so many, and nobody owns them: they stay until
        they are reused. Raises DamagedBlockError or ValueError as ``BlockIO.write``; the cache is
        as before then.
        """
        each = self.group_bytes[group]
        if len(content.data) != each * len(keys) or len(content.checksums) != len(keys):
            raise ValueError(
                f"{len(keys)} blocks of {each} bytes are not {len(content.data)} bytes"
            )

        def write(places: Sequence[int], blocks: list[int]) -> None:
            if len(places) == len(keys):
                self._memory.write(group, blocks, content)
                return
            rows = content.data.reshape(len(keys), each)[places].reshape(-1)
            sums = content.checksums[np.array(places)]
            self._memory.write(group, blocks, BlockBytes(rows, sums))

        return self._cache.keyed.adopt(keys, group, write)

    def renew(self, keys: Sequence[Key], group: int) -> None:
        """Keep these blocks, a chain, longest of all that nobody holds."""
        self._cache.keyed.renew(keys, group)


def check_exchange(
    plan: Plan, backend: str, ranks: int, stages: int, prefix_caching: bool, what: str
) -> None:
    """Raise ConfigError where ``what`` (a phrase: "--role decode") needs blocks as bytes, and an
    engine of this ``plan`` does not give or take them."""
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
    if backend == "cuda":
        raise ConfigError(
            "blocks of the cuda backend's KV cache cannot be copied yet; choose --backend cpu, "
            f"or start without {what}"
        )
