"""Checks that the cache's bookkeeping is consistent, for tests and on an administrator's
request."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import Window, first_seen_block
from penstock.cache.pool import BlockPool
from penstock.cache.prefix import PrefixIndex


def check_books(
    tables: Collection[BlockTable],
    pool: BlockPool,
    index: PrefixIndex,
    windows: Sequence[Window | None],
    block_size: int,
) -> None:
    """Raise AssertionError unless owners, counts, free lines and index agree.

    ``tables`` are those that hold blocks, in groups with these ``windows``.
    """
    pool.check_integrity()
    index.check_integrity()
    owners = [0] * pool.num_blocks
    for table in tables:
        _check_sizes(table, windows, block_size)
        _check_blocks(table, pool, index, block_size, owners)
    assert owners == pool.ref_counts, "reference counts do not match owners"
    findable_free = {b for b in index.blocks() if owners[b] == 0}
    assert findable_free == set(pool.kept()), "kept blocks are not the findable free ones"


def _check_sizes(table: BlockTable, windows: Sequence[Window | None], size: int) -> None:
    places = table.num_places
    assert places, "an empty table is registered"
    assert {len(blocks) for blocks in table.blocks} == {places}, "groups differ in length"
    assert len(table.blocks) == len(table.forgotten) == len(windows)
    assert table.num_committed <= places * size, "missing slots"
    assert table.num_published * size <= table.num_committed
    assert table.writable <= places * size
    for window, forgotten in zip(windows, table.forgotten, strict=True):
        seen = 0 if window is None else first_seen_block(window, table.num_committed, size)
        assert forgotten <= seen, "a block was given back that later tokens see"


def _check_blocks(
    table: BlockTable, pool: BlockPool, index: PrefixIndex, size: int, owners: list[int]
) -> None:
    """Adds the table to the ``owners`` of the blocks that it holds."""
    held = [b for g, blocks in enumerate(table.blocks) for b in blocks[table.forgotten[g] :]]
    assert len(set(held)) == len(held), "a table repeats a block"
    assert table.num_held == len(held)
    for blocks, forgotten in zip(table.blocks, table.forgotten, strict=True):
        for block in blocks[table.num_committed // size :]:
            assert not table.writable or pool.ref_counts[block] == 1, "shared, writable"
        for i in range(forgotten, table.num_places):
            block = blocks[i]
            owners[block] += 1
            if block in index and i < table.num_published:
                group = index.group(block)
                assert table.blocks[group] is blocks, f"block {block} is of another group"
                found = index.find(table.keys[i], group)
                assert found == block, f"block {block} is found, but not by its table's key"
            elif block in index:  # published by the table that this one was forked from
                assert i < table.num_committed // size, f"block {block} is found"
