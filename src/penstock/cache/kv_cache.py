"""The KV cache's bookkeeping: which blocks a sequence holds, and what can be found by content.

No tensor is touched here. Blocks of ``block_size`` token slots are numbered; the executor owns
the memory behind the numbers. Layers are in *groups* (``Plan.kv_groups``), and a block holds the
keys and values of its tokens in the layers of one group; any block may be of any group. The policy,
in full:

- A sequence gets blocks as it needs slots, one of each group, never ahead, so at most its last ones
  are partly full. What it got for drafts that were rejected it gives back after the step
  (``trim``).
- A full block becomes findable once the step that wrote it has been executed (``commit``), never
  before: a second request of the same step must not read what is still being written. Where steps
  are submitted one behind the other, ``submitted`` and ``publish`` are the two halves of that.
- A group whose layers see only the latest tokens, or those of their chunk, its *window*, gives
  back what lies behind: as tokens are committed, the blocks that no later step sees. Between steps
  a sequence has there no more than its window and a block.
- A prefix is found where every group has what the tokens behind it see: a group without a window
  all blocks, one with a window those that reach into it.
- When two sequences computed the same block at once, the first to commit is found; the other
  block stays private and is blank when freed.
- A freed block that can be found stays so until it is reused. Reuse takes blank blocks first, then
  the least recently freed; a sequence frees its last blocks first, so that of a chain the tail is
  lost before the head, without which the tail could not be found.
- Forked sequences share blocks. The last, partly full ones are copied when one of them first
  writes to them while others still hold them. The copies of a step are executed in the order given,
  before any op of it runs.
- Where layers keep states, a table that holds blocks has a state slot (``cache/state_slots.py``),
  and a prefix is found where there is the state behind it, too.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from penstock.cache.block_table import BlockTable
from penstock.cache.changes import CacheChanges
from penstock.cache.geometry import (
    Window,
    first_seen_block,
    sequence_blocks,
    unseen_from,
    window_blocks,
    window_size,
)
from penstock.cache.integrity import check_books
from penstock.cache.keyed_blocks import KeyedBlocks
from penstock.cache.pool import BlockPool
from penstock.cache.prefix import Key, PrefixIndex
from penstock.cache.prefix_cache import CachedPrefix, PrefixCache, Published
from penstock.cache.state_slots import Snapshot, StateCopy, StateHold, StateLimits, StateSlots

BlockCopy = tuple[int, int]
"""Source and target block id of a copy."""

_NOWHERE = 0  # block id of places that a table does not hold: nothing is read there


class KvCache:
    """Hands blocks to sequences and finds cached prefixes.

    ``windows`` has the window of each group of layers: what a query sees, or None for all before
    it and itself. Methods that need memory are all or nothing, unless they say
    otherwise: they return False and change nothing when blocks do not suffice.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        windows: Sequence[Window | None] = (None,),
        enable_prefix_caching: bool = True,
        states: StateLimits | None = None,
    ) -> None:
        """``states``: how many state slots there are, if layers keep states."""
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        if not windows or any(w is not None and window_size(w) < 1 for w in windows):
            raise ValueError(f"a cache has groups with windows of at least 1, not {windows}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.windows = tuple(windows)
        self.enable_prefix_caching = enable_prefix_caching
        self._num_groups = len(self.windows)
        self._windowed = [(g, window) for g, window in enumerate(windows) if window is not None]
        self._pool = BlockPool(num_blocks)
        self._index = PrefixIndex(self._num_groups)
        self._states = None
        if states is not None:
            self._states = StateSlots(states, block_size, enable_prefix_caching)
        self._prefixes = PrefixCache(self._index, self.windows, block_size, self._states)
        self.keyed = KeyedBlocks(self._pool, self._index)
        """The blocks that can be found, by their keys."""
        self._tables: set[BlockTable] = set()  # those that hold blocks

    @property
    def forgets(self) -> bool:
        """Whether sequences give blocks back while they run: a group has a window."""
        return bool(self._windowed)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out, with cached content or without."""
        return self._pool.num_free

    @property
    def num_used_blocks(self) -> int:
        return self._pool.num_used

    @property
    def num_kept_blocks(self) -> int:
        """Free blocks whose content can be found."""
        return self._pool.num_kept

    @property
    def keeps_states(self) -> bool:
        """Whether layers keep states."""
        return self._states is not None

    @property
    def num_states(self) -> tuple[int, int]:
        """State slots in use, and all."""
        states = self._states
        return (0, 0) if states is None else (states.num_used, states.num_slots)

    @property
    def num_held_blocks(self) -> int:
        """Sum over tables of their blocks; a shared block counts once per table."""
        return sum(table.num_held for table in self._tables)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that can be found by content, in use or free."""
        return len(self._index)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks, of all groups, that a sequence of so many tokens holds when they are computed.

        A step that computes many of them at once holds more until it is taken in.
        """
        return sequence_blocks(self.windows, num_tokens, self.block_size)

    def lookup(self, table: BlockTable, tokens: array[int], limit: int) -> CachedPrefix:
        """The longest cached prefix of ``tokens``, of at most ``limit`` tokens.

        Changes nothing but ``table.keys``. The blocks are the caller's only after ``begin``.
        """
        if not self.enable_prefix_caching:
            return self._prefixes.nothing()
        return self._prefixes.lookup(table, tokens, limit)

    def keys(self, table: BlockTable, tokens: array[int], count: int) -> list[Key]:
        """The keys of the first ``count`` blocks of ``tokens``, by which they can be found."""
        return self._prefixes.keys(table, tokens, count)

    def follow(self) -> deque[Published]:
        """Return a queue to which whatever is published from now on is appended; its one follower
        takes it from there."""
        news = deque[Published]()
        self._prefixes.followers.append(news)
        return news

    def begin(
        self,
        table: BlockTable,
        prefix: CachedPrefix | None,
        num_tokens: int,
        must_fit: int,
        reserve: int = 0,
    ) -> int:
        """Give an empty table the blocks of a ``prefix`` and slots up to ``num_tokens``.

        Only if ``must_fit`` tokens, the prefix included, would fit now (:meth:`fits`). Returns the
        number of tokens that there are slots for: where groups have windows it may be less than
        ``num_tokens``, which would need more blocks at once than the sequence ever keeps; 0 where
        ``must_fit`` do not fit.
        """
        assert not table.blocks, "the table already holds blocks"
        prefix = prefix or self._prefixes.nothing()
        if not self.fits(prefix, must_fit, reserve):
            return 0
        cached = prefix.num_tokens // self.block_size
        for blocks in prefix.blocks:
            for block in blocks:
                self._pool.share(block)
        table.forgotten = [cached - len(blocks) for blocks in prefix.blocks]
        table.blocks = tuple(
            [array("i", [_NOWHERE] * (cached - len(blocks)) + blocks) for blocks in prefix.blocks]
        )
        table.num_published = cached
        table.num_committed = prefix.num_tokens
        self._tables.add(table)
        if self._states is not None:
            table.state = self._states.begin(
                must_fit, prefix.num_tokens, prefix.state, prefix.branch
            )
        most = cached + (self._pool.num_free - reserve * self._num_groups) // self._num_groups
        num_tokens = min(num_tokens, most * self.block_size)
        self._grow(table, num_tokens)
        return num_tokens

    def fits(self, prefix: CachedPrefix, num_tokens: int, reserve: int = 0) -> bool:
        """Whether so many tokens, those of ``prefix`` included, could be computed now, by small
        steps if need be, and leave ``reserve`` places of blocks of all groups free."""
        ref_counts = self._pool.ref_counts
        places = self._places(num_tokens) - prefix.num_tokens // self.block_size
        needed = reserve * self._num_groups
        for window, blocks in zip(self.windows, prefix.blocks, strict=True):
            # A block of the prefix that others hold takes none that is free, and frees none when
            # this sequence forgets it.
            most = places + sum([ref_counts[block] == 0 for block in blocks])
            if window is not None:
                most = min(most, window_blocks(window, self.block_size))
            needed += most
        return needed <= self._pool.num_free

    def extend(self, table: BlockTable, start: int, end: int, copies: list[BlockCopy]) -> bool:
        """Make slots ``start .. end - 1`` writable, ``start`` being the table's committed tokens.

        Adds to ``copies`` the block copies that this takes, if any.
        """
        if end <= table.writable:
            return True
        pool = self._pool
        missing = max(self._places(end) - len(table.blocks[0]), 0)
        shared = self._writes_to_shared(table, start)
        if (missing + shared) * self._num_groups > pool.num_free:
            return False
        if shared:
            at = start // self.block_size
            for blocks, new in zip(table.blocks, self._take(self._num_groups), strict=True):
                old = blocks[at]
                blocks[at] = new
                pool.release(old, keep=old in self._index)
                copies.append((old, new))
        self._grow(table, end)
        return True

    def num_fitting(self, table: BlockTable, start: int) -> int:
        """Return the maximum number of tokens after ``start`` that ``extend`` could take now."""
        free = self._pool.num_free // self._num_groups
        if self._writes_to_shared(table, start):
            free -= 1  # for the copy
        return 0 if free < 0 else (table.num_places + free) * self.block_size - start

    def commit(self, table: BlockTable, tokens: array[int], num_computed: int) -> None:
        """Note that slots below ``num_computed`` were written by an executed step; publish, and
        give back what lies behind windows."""
        table.num_committed = num_computed
        if num_computed >= table.due_at:
            self.publish(table, tokens, num_computed)

    def submitted(self, table: BlockTable, num_computed: int) -> None:
        """Note that slots below ``num_computed`` are written by a step in flight: steps behind it
        may read them by this table and its forks, and nobody finds them before ``publish``."""
        table.num_committed = num_computed

    def publish(self, table: BlockTable, tokens: array[int], num_computed: int) -> None:
        """Publish full blocks below ``num_computed``, whose steps were executed, and give back
        those that tokens from there on do not see.

        ``tokens`` are known that far; the table may be committed further. No later step computes
        tokens below ``num_computed`` again.
        """
        if num_computed < table.due_at:
            return
        full = num_computed // self.block_size
        table.due_at = (full + 1) * self.block_size
        if not table.private and self.enable_prefix_caching:
            self._prefixes.publish(table, tokens, full)
        if table.state is not None and self._states is not None:
            self._states.publish(table.state, table.keys, num_computed, table.private)
        if self._windowed:
            self._forget(table, num_computed)

    def has_place_after(
        self, published: Iterable[tuple[BlockTable, int]], freed: Iterable[BlockTable] = ()
    ) -> bool:
        """Whether every group can have one more block when the steps in flight have been taken in.

        ``published`` are tables, each with the number of tokens up to which it will be published
        (:meth:`publish`), which gives back what lies behind windows; ``freed`` will be freed.
        """
        free, counts = self._pool.num_free, self._pool.ref_counts
        owners = Counter[int]()  # forks give a shared block back together
        for table, num_computed in published:
            for group, window in self._windowed:
                first = first_seen_block(window, num_computed, self.block_size)
                owners.update(table.blocks[group][table.forgotten[group] : first])
        for table in freed:
            for blocks, forgotten in zip(table.blocks, table.forgotten, strict=True):
                owners.update(blocks[forgotten:])
        free += sum(counts[block] == number for block, number in owners.items())
        return free >= self._num_groups

    def trim(self, table: BlockTable) -> None:
        """Give back the blocks behind the committed tokens, which nobody else has."""
        keep = self._places(table.num_committed)
        if keep == table.num_places:
            return
        for blocks in table.blocks:
            for block in reversed(blocks[keep:]):
                self._pool.release(block, keep=False)
            del blocks[keep:]
        table.writable = min(table.writable, keep * self.block_size)

    def fork(self, parent: BlockTable) -> BlockTable:
        """A second table over the parent's committed tokens. Takes no memory until one writes."""
        child = BlockTable()
        child.root = parent.root
        child.keys = parent.keys[: parent.num_published]
        child.num_committed = parent.num_committed
        child.num_published = parent.num_published
        child.private = parent.private
        keep = self._places(parent.num_committed)
        if keep:
            child.forgotten = list(parent.forgotten)
            child.blocks = tuple([blocks[:keep] for blocks in parent.blocks])
            for blocks, forgotten in zip(child.blocks, child.forgotten, strict=True):
                for block in blocks[forgotten:]:
                    self._pool.share(block)
            self._tables.add(child)
            if self._states is not None and parent.state is not None:
                child.state = self._states.fork(parent.state)
        parent.writable = 0  # the first of the two to write gets copies of the last blocks
        return child

    def free(self, table: BlockTable) -> None:
        """Give the table's blocks back, the last ones first."""
        self._pool.release_several(table.held_backwards(), self._index.blocks())
        table.blocks, table.forgotten = (), []
        table.num_committed = table.num_published = table.writable = table.due_at = 0
        table.private = False
        if table.state is not None and self._states is not None:
            self._states.release(table.state)
            table.state = None
        self._tables.discard(table)

    def reset(self) -> None:
        """Forget all cached content, as when weights change.

        Sequences keep their blocks, but nothing computed from what they hold is published.
        """
        self._index.clear()
        self._pool.forget_kept()
        if self._states is not None:
            self._states.reset()
        for table in self._tables:
            table.private = True

    def compose_states(self, reached: Iterable[tuple[BlockTable, int]]) -> list[list[Snapshot]]:
        """Note that a step brings the states of these tables to so many tokens; returns, for each
        table, the snapshots of its state that the step stores on the way."""
        assert self._states is not None
        holds: list[tuple[StateHold, int]] = []
        for table, end in reached:
            assert table.state is not None
            holds.append((table.state, end))
        return self._states.compose(holds)

    def take_state_copies(self) -> list[StateCopy]:
        """The copies of state slots that the step being composed makes before anything else."""
        return [] if self._states is None else self._states.take_copies()

    def changes_after(self, position: int | None) -> CacheChanges:
        """How the keys that can be found have changed since a follower was at ``position``; None:
        it knows no keys.

        The first group of layers without a window stands for all: what others lack of a prefix,
        behind windows or of states, is not reported.
        """
        whole = (group for group, window in enumerate(self.windows) if window is None)
        return self._index.changes_after(position, next(whole, 0))

    def slots(self) -> tuple[int, int]:
        """(allocated, filled) token slots of the blocks that sequences hold, shared ones once."""
        fill: dict[int, int] = {}  # of blocks that are not known to be full
        size = self.block_size
        for table in self._tables:
            for i in range(table.num_committed // size, table.num_places):
                filled = max(table.num_committed - i * size, 0)
                for blocks in table.blocks:
                    fill[blocks[i]] = max(filled, fill.get(blocks[i], 0))
        allocated = self._pool.num_used * size
        return allocated, allocated - sum(size - filled for filled in fill.values())

    def check_integrity(self) -> None:
        """Raise AssertionError unless owners, counts, free lines and index agree."""
        check_books(self._tables, self._pool, self._index, self.windows, self.block_size)
        if self._states is not None:
            holds = [table.state for table in self._tables]
            self._states.check_integrity([hold for hold in holds if hold is not None])

    def _places(self, num_tokens: int) -> int:
        """Number of blocks that each group needs for so many tokens, if none is given back."""
        return -(-num_tokens // self.block_size)

    def _forget(self, table: BlockTable, num_computed: int) -> None:
        """Give back the blocks that no token from ``num_computed`` on sees, in the order in which
        they were seen last, so that the least recent are reused first."""
        size, pool = self.block_size, self._pool
        for group, window in self._windowed:
            first, blocks = first_seen_block(window, num_computed, size), table.blocks[group]
            pool.release_several(blocks[table.forgotten[group] : first], self._index.blocks())
            table.forgotten[group] = max(first, table.forgotten[group])
            table.due_at = min(table.due_at, unseen_from(window, first, size))

    def _writes_to_shared(self, table: BlockTable, start: int) -> bool:
        # Groups share their last blocks alike: they are forked and copied together.
        at, offset = divmod(start, self.block_size)
        return offset != 0 and self._pool.ref_counts[table.blocks[0][at]] > 1

    def _take(self, count: int) -> list[int]:
        if count == 1:  # as a sequence that decodes
            block = self._pool.take()
            self._index.drop(block)
            return [block]
        taken = self._pool.take_several(count)
        self._index.drop_several(taken)
        return taken

    def _grow(self, table: BlockTable, num_tokens: int) -> None:
        groups = self._num_groups
        count = self._places(num_tokens) - len(table.blocks[0])
        if count > 0:
            taken = self._take(count * groups)
            for group, blocks in enumerate(table.blocks):
                blocks.extend(taken[group::groups])
        table.writable = len(table.blocks[0]) * self.block_size
