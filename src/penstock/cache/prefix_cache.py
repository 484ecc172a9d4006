"""Finds the longest cached prefix of a sequence, over all groups of layers."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import Window, first_seen_block
from penstock.cache.prefix import Key, PrefixIndex, next_key
from penstock.cache.state_slots import StateSlots


class CachedPrefix(NamedTuple):
    """The first tokens of a sequence, found in the cache."""

    num_tokens: int
    """A multiple of the block size; 0 where nothing was found."""
    blocks: tuple[list[int], ...]
    """Blocks, for each group, of the last of these tokens: of all of them, or of those that
    later tokens see."""
    state: int | None = None
    """The slot of the state behind these tokens, where layers keep states."""
    branch: int = 0
    """Number of tokens of which blocks were found, and perhaps no state."""


class Published(NamedTuple):
    """Blocks of a chain that can be found from now on, in every group of layers."""

    parent: Key
    """The key of the block before the first, or the root of the chain."""
    first: int
    """Number of the first one in the chain."""
    keys: list[Key]


class PrefixCache:
    """Finds the blocks of a sequence's first tokens by content, and publishes those it computes.

    It owns no block: ``index`` says which blocks can be found, and the cache drops a block there
    when it hands it out. ``windows`` has the window of each group of layers, or None.
    """

    def __init__(
        self,
        index: PrefixIndex,
        windows: Sequence[Window | None],
        block_size: int,
        states: StateSlots | None = None,
    ) -> None:
        """``states``: where layers keep states, of which a prefix needs the one behind it."""
        self.followers: list[deque[Published]] = []
        """What was published is appended to each of these, for whoever takes it from there."""
        self._index = index
        self._block_size = block_size
        self._states = states
        self._num_groups = len(windows)
        self._whole = [g for g, window in enumerate(windows) if window is None]
        self._windowed = [(g, window) for g, window in enumerate(windows) if window is not None]

    def nothing(self) -> CachedPrefix:
        """The prefix of no tokens."""
        return CachedPrefix(0, tuple([] for _ in range(self._num_groups)))

    def lookup(self, table: BlockTable, tokens: array[int], limit: int) -> CachedPrefix:
        """The longest cached prefix of ``tokens``, of at most ``limit`` tokens.

        Changes nothing but ``table.keys``.
        """
        count = limit // self._block_size
        found: list[list[int]] = [[] for _ in range(self._num_groups)]
        find = self._index.find
        for i in range(count):
            if i == len(table.keys):
                self._extend_keys(table, tokens, i + 1)
            key = table.keys[i]
            here = [find(key, group) for group in self._whole]
            if None in here:
                count = i
                break
            for group, block in zip(self._whole, here, strict=True):
                if block is not None:
                    found[group].append(block)
        if self._windowed:
            count = self._within_windows(table, count, found)
        state, branch = None, count
        while count and self._states is not None:
            state = self._states.find(table.keys[count - 1])
            if state is not None:
                break
            count -= 1
            if count and self._windowed and self._states.find(table.keys[count - 1]) is not None:
                count = self._within_windows(table, count, found)
        if not count:
            return self.nothing()._replace(branch=branch * self._block_size)
        for group in self._whole:
            del found[group][count:]
        size = self._block_size
        return CachedPrefix(count * size, tuple(found), state, branch * size)

    def publish(self, table: BlockTable, tokens: array[int], full: int) -> None:
        """Make the table's first ``full`` blocks of every group findable, which were written."""
        if len(table.keys) < full:
            self._extend_keys(table, tokens, full)
        first = table.num_published
        if full == first + 1:  # as of a sequence that decodes
            for group, blocks in enumerate(table.blocks):
                self._index.publish(table.keys[first], blocks[first], group)
        else:
            keys = table.keys[first:full]
            for group, blocks in enumerate(table.blocks):
                self._index.publish_several(keys, blocks[first:full], group)
        table.num_published = full
        if self.followers and full > first:
            parent = table.keys[first - 1] if first else table.root
            published = Published(parent, first, table.keys[first:full])
            for news in self.followers:
                news.append(published)

    def keys(self, table: BlockTable, tokens: array[int], count: int) -> list[Key]:
        """The keys of the first ``count`` blocks of a sequence."""
        if len(table.keys) < count:
            self._extend_keys(table, tokens, count)
        return table.keys[:count]

    def _within_windows(self, table: BlockTable, count: int, found: list[list[int]]) -> int:
        """How many of ``count`` blocks are the longest prefix that groups with windows have, too;
        puts their blocks into ``found``."""
        keys, find, size = table.keys, self._index.find, self._block_size
        agreeing = 0  # groups in a row that have what a prefix of `count` blocks needs
        at = 0
        while count and agreeing < len(self._windowed):
            group, window = self._windowed[at]
            blocks: list[int] = []
            for i in range(count - 1, first_seen_block(window, count * size, size) - 1, -1):
                block = find(keys[i], group)
                if block is None:  # nor does any longer prefix that sees it
                    count, agreeing = i, -1
                    break
                blocks.append(block)
            found[group] = blocks[::-1]
            agreeing += 1
            at = (at + 1) % len(self._windowed)
        if not count:
            for group, _ in self._windowed:
                found[group] = []
        return count

    def _extend_keys(self, table: BlockTable, tokens: array[int], count: int) -> None:
        size = self._block_size
        keys = table.keys
        key = keys[-1] if keys else table.root
        for i in range(len(keys), count):
            key = next_key(key, tokens[i * size : (i + 1) * size])
            keys.append(key)
