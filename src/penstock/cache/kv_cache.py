"""The KV cache's books: which blocks a sequence holds, and what can be found by content.

No tensor is touched here. Blocks of ``block_size`` token slots are numbered; the executor owns
the memory behind the numbers. The policy, in full:

- A sequence gets blocks as it needs slots, never ahead, so at most its last block is partly full.
  What it got for drafts that were rejected it gives back after the step (``trim``).
- A full block becomes findable once the step that wrote it has been executed (``commit``), never
  before: a second request of the same step must not read what is still being written. Where steps
  are submitted one behind the other, ``submitted`` and ``publish`` are the two halves of that.
- When two sequences computed the same block at once, the first to commit is found; the other
  block stays private and is blank when freed.
- A freed block that can be found stays so until it is reused. Reuse takes blank blocks first, then
  the least recently freed; a sequence frees its last block first, so that of a chain the tail is
  lost before the head, without which the tail could not be found.
- Forked sequences share blocks. The last, partly full one is copied when one of them first
  writes to it while others still hold it. The copies of a step are executed in the order given,
  before any op of it runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.cache.pool import BlockPool
from penstock.cache.prefix import Key, PrefixIndex, next_key, root_key

BlockCopy = tuple[int, int]
"""(from, to) block ids."""


class BlockTable:
    """The blocks of one sequence, first to last, and the keys of its full blocks.

    Emptied by ``KvCache.free`` and usable again; keys survive, since tokens do not change.
    Exporting the buffer of ``block_ids`` (``memoryview``, ``np.frombuffer``) blocks its growth.
    """

    __slots__ = (
        "block_ids",
        "full_at",
        "keys",
        "num_committed",
        "num_published",
        "private",
        "root",
        "writable",
    )

    def __init__(self, salt: str = "", extra: Sequence[str] = ()) -> None:
        self.root: Key = root_key(salt, extra)
        self.keys: list[Key] = []
        self.block_ids: array[int] = array("i")
        self.num_committed = 0  # tokens whose K and V are in the blocks, or will be: in flight
        self.num_published = 0  # leading blocks that were offered to the index
        self.private = False  # the cache was reset under it: nothing more is published
        # What the two calls of every step need to see that there is nothing to do:
        self.writable = 0  # slots below this are its own, as far as is known without looking
        self.full_at = 0  # fewer committed tokens fill no block that was not offered yet


class KvCache:
    """Hands blocks to sequences and finds cached prefixes.

    Methods that need memory are all or nothing: they return False and change nothing when blocks
    do not suffice.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._pool = BlockPool(num_blocks)
        self._index = PrefixIndex()
        self._tables: set[BlockTable] = set()  # those that hold blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out, with cached content or without."""
        return self._pool.num_free

    @property
    def num_used_blocks(self) -> int:
        return self._pool.num_used

    @property
    def num_held_blocks(self) -> int:
        """Sum over tables of their blocks; a shared block counts once per table."""
        return sum(len(table.block_ids) for table in self._tables)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that can be found by content, in use or free."""
        return len(self._index)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def lookup(self, table: BlockTable, tokens: array[int], limit: int) -> list[int]:
        """Blocks that hold the longest cached prefix of ``tokens``, of at most ``limit`` tokens.

        Changes nothing but ``table.keys``. The blocks are the caller's only after ``begin``.
        """
        hits: list[int] = []
        if self.enable_prefix_caching:
            for i in range(limit // self.block_size):
                if i == len(table.keys):
                    self._extend_keys(table, tokens, i + 1)
                block = self._index.find(table.keys[i])
                if block is None:
                    break
                hits.append(block)
        return hits

    def begin(
        self, table: BlockTable, hits: list[int], num_tokens: int, must_fit: int, reserve: int = 0
    ) -> bool:
        """Give an empty table the blocks of ``hits`` and slots up to ``num_tokens``.

        Only if ``must_fit`` tokens, hits included, would fit now and leave ``reserve`` free blocks.
        """
        assert not table.block_ids, "the table already holds blocks"
        pool = self._pool
        if not self.fits(hits, must_fit, reserve):
            return False
        for block in hits:
            pool.share(block)
        table.block_ids.extend(hits)
        table.num_published = len(hits)
        table.num_committed = len(hits) * self.block_size
        self._tables.add(table)
        self._grow(table, num_tokens)
        return True

    def fits(self, hits: list[int], num_tokens: int, reserve: int = 0) -> bool:
        """Whether so many tokens, those of ``hits`` included, would leave ``reserve`` free."""
        revived = sum(self._pool.ref_counts[block] == 0 for block in hits)
        needed = self.blocks_for(num_tokens) - len(hits) + revived
        return needed + reserve <= self._pool.num_free

    def extend(self, table: BlockTable, start: int, end: int, copies: list[BlockCopy]) -> bool:
        """Make slots ``start .. end - 1`` writable, ``start`` being the table's committed tokens.

        Adds to ``copies`` the block copy that this takes, if any.
        """
        if end <= table.writable:
            return True
        size = self.block_size
        pool = self._pool
        missing = max(self.blocks_for(end) - len(table.block_ids), 0)
        shared = self._writes_to_shared(table, start)
        if missing + shared > pool.num_free:
            return False
        if shared:
            old, new = table.block_ids[start // size], self._take()
            table.block_ids[start // size] = new
            pool.release(old, keep=old in self._index)
            copies.append((old, new))
        self._grow(table, end)
        return True

    def room(self, table: BlockTable, start: int) -> int:
        """The most tokens after ``start`` that ``extend`` could make room for now."""
        free = self._pool.num_free
        if self._writes_to_shared(table, start):
            free -= 1  # for the copy
        return 0 if free < 0 else (len(table.block_ids) + free) * self.block_size - start

    def commit(self, table: BlockTable, tokens: array[int], num_computed: int) -> None:
        """Note that slots below ``num_computed`` were written by an executed step; publish."""
        table.num_committed = num_computed
        if num_computed >= table.full_at:
            self.publish(table, tokens, num_computed)

    def submitted(self, table: BlockTable, num_computed: int) -> None:
        """Note that slots below ``num_computed`` are written by a step in flight: steps behind it
        may read them by this table and its forks, and nobody finds them before ``publish``."""
        table.num_committed = num_computed

    def publish(self, table: BlockTable, tokens: array[int], num_computed: int) -> None:
        """The steps that wrote slots below ``num_computed`` were executed: publish full blocks.

        ``tokens`` are known that far; the table may be committed further.
        """
        if num_computed < table.full_at:
            return
        full = num_computed // self.block_size
        table.full_at = (full + 1) * self.block_size
        if table.private or not self.enable_prefix_caching:
            return
        self._extend_keys(table, tokens, full)
        for i in range(table.num_published, full):
            self._index.publish(table.keys[i], table.block_ids[i])
        table.num_published = full

    def trim(self, table: BlockTable) -> None:
        """Give back the blocks behind the committed tokens, which nobody else has."""
        keep = self.blocks_for(table.num_committed)
        if keep == len(table.block_ids):
            return
        for block in reversed(table.block_ids[keep:]):
            self._pool.release(block, keep=False)
        del table.block_ids[keep:]
        table.writable = min(table.writable, keep * self.block_size)

    def fork(self, parent: BlockTable) -> BlockTable:
        """A second table over the parent's committed tokens. Takes no memory until one writes."""
        child = BlockTable()
        child.root = parent.root
        child.keys = parent.keys[: parent.num_published]
        child.num_committed = parent.num_committed
        child.num_published = parent.num_published
        child.private = parent.private
        child.block_ids = parent.block_ids[: self.blocks_for(parent.num_committed)]
        for block in child.block_ids:
            self._pool.share(block)
        parent.writable = 0  # of whoever writes first, the last block is copied
        if child.block_ids:
            self._tables.add(child)
        return child

    def free(self, table: BlockTable) -> None:
        """Give the table's blocks back, the last one first."""
        for block in reversed(table.block_ids):
            self._pool.release(block, keep=block in self._index)
        table.block_ids = array("i")
        table.num_committed = table.num_published = table.writable = table.full_at = 0
        table.private = False
        self._tables.discard(table)

    def reset(self) -> None:
        """Forget all cached content, as when weights change.

        Sequences keep their blocks, but nothing computed from what they hold is published.
        """
        self._index.clear()
        self._pool.forget_kept()
        for table in self._tables:
            table.private = True

    def slots(self) -> tuple[int, int]:
        """(allocated, filled) token slots of the blocks that sequences hold, shared ones once."""
        fill: dict[int, int] = {}  # of blocks that are not known to be full
        size = self.block_size
        for table in self._tables:
            for i in range(table.num_committed // size, len(table.block_ids)):
                block = table.block_ids[i]
                filled = max(table.num_committed - i * size, 0)
                fill[block] = max(filled, fill.get(block, 0))
        allocated = self._pool.num_used * size
        return allocated, allocated - sum(size - filled for filled in fill.values())

    def check_integrity(self) -> None:
        """Raise AssertionError unless owners, counts, free lines and index agree."""
        self._pool.check_integrity()
        self._index.check_integrity()
        owners = [0] * self.num_blocks
        for table in self._tables:
            assert table.block_ids, "an empty table is registered"
            assert len(set(table.block_ids)) == len(table.block_ids), "a table repeats a block"
            assert self.blocks_for(table.num_committed) <= len(table.block_ids), "missing slots"
            assert table.num_published * self.block_size <= table.num_committed
            assert table.writable <= len(table.block_ids) * self.block_size
            for block in table.block_ids[table.num_committed // self.block_size :]:
                assert not table.writable or self._pool.ref_counts[block] == 1, "shared, writable"
            for i, block in enumerate(table.block_ids):
                owners[block] += 1
                if block in self._index and i < table.num_published:
                    found = self._index.find(table.keys[i])
                    assert found == block, f"block {block} is found, but not by its table's key"
                elif block in self._index:  # published by the table that this one was forked from
                    assert i < table.num_committed // self.block_size, f"block {block} is found"
        assert owners == self._pool.ref_counts, "reference counts do not match owners"
        findable_free = {b for b in self._index.blocks() if owners[b] == 0}
        assert findable_free == set(self._pool.kept()), "kept blocks are not the findable free ones"

    def _writes_to_shared(self, table: BlockTable, start: int) -> bool:
        at, offset = divmod(start, self.block_size)
        return offset != 0 and self._pool.ref_counts[table.block_ids[at]] > 1

    def _extend_keys(self, table: BlockTable, tokens: array[int], count: int) -> None:
        size = self.block_size
        keys = table.keys
        key = keys[-1] if keys else table.root
        for i in range(len(keys), count):
            key = next_key(key, tokens[i * size : (i + 1) * size])
            keys.append(key)

    def _take(self) -> int:
        block = self._pool.take()
        self._index.drop(block)
        return block

    def _grow(self, table: BlockTable, num_tokens: int) -> None:
        for _ in range(self.blocks_for(num_tokens) - len(table.block_ids)):
            table.block_ids.append(self._take())
        table.writable = len(table.block_ids) * self.block_size
