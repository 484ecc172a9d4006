"""Which table has which state slot, the copies that are made, and the states that are kept."""

from __future__ import annotations

from array import array

import pytest

from penstock.cache.block_table import BlockTable
from penstock.cache.kv_cache import KvCache
from penstock.cache.state_slots import StateLimits

SIZE = 4


def cache_of(slots: int, sequences: int = 3, interval: int = 1000 * SIZE) -> KvCache:
    return KvCache(60, SIZE, states=StateLimits(slots, sequences, interval))


def slot_of(table: BlockTable) -> int:
    assert table.state is not None
    return table.state.slot


def begun(cache: KvCache, tokens: list[int]) -> tuple[BlockTable, int]:
    """A table of these tokens, and how many of them were found."""
    table, known = BlockTable(), array("i", tokens)
    prefix = cache.lookup(table, known, len(tokens) - 1)
    assert cache.begin(table, prefix, len(tokens), len(tokens))
    return table, prefix.num_tokens


def borders_of(cache: KvCache, table: BlockTable, end: int) -> list[int]:
    """The borders at which a step up to ``end``, of this table alone, stores the state."""
    (snapshots,) = cache.compose_states([(table, end)])
    return [border for border, _ in snapshots]


def computed(cache: KvCache, table: BlockTable, tokens: list[int], end: int) -> list[int]:
    """The borders at which the step up to ``end`` stores the state."""
    assert cache.extend(table, table.num_committed, end, [])
    borders = borders_of(cache, table, end)
    cache.commit(table, array("i", tokens), end)
    return borders


def test_a_table_has_a_slot_while_it_holds_blocks() -> None:
    cache = cache_of(3)
    tables = [begun(cache, [i, 1, 2])[0] for i in range(3)]
    assert sorted(map(slot_of, tables)) == [0, 1, 2]
    assert cache.num_states == (3, 3)
    cache.check_integrity()
    freed = slot_of(tables[1])
    cache.free(tables[1])
    assert tables[1].state is None
    assert cache.num_states == (2, 3)
    assert slot_of(begun(cache, [7])[0]) == freed
    cache.check_integrity()


def test_a_fork_copies_its_parent_s_slot_once() -> None:
    cache = cache_of(3)
    parent, _ = begun(cache, [1, 2])
    computed(cache, parent, [1, 2], 2)
    child, other = cache.fork(parent), cache.fork(parent)
    expected = [(slot_of(parent), slot_of(child)), (slot_of(parent), slot_of(other))]
    assert cache.take_state_copies() == expected
    assert cache.take_state_copies() == []
    assert child.state is not None
    assert child.state.seen == 2
    cache.free(parent)
    cache.check_integrity()


def test_tables_of_models_without_states_have_none() -> None:
    cache = KvCache(20, SIZE)
    table, _ = begun(cache, [1, 2])
    assert table.state is None
    assert cache.take_state_copies() == []
    assert cache.num_states == (0, 0)


def test_a_prompt_s_last_border_is_kept_and_found() -> None:
    """And the sequence that finds it has a copy, which its first step makes."""
    cache, tokens = cache_of(6), list(range(15))
    first, _ = begun(cache, tokens)
    assert computed(cache, first, tokens, 7) == []
    assert computed(cache, first, tokens, 15) == [12]
    second, found = begun(cache, [*tokens[:14], 99])
    assert found == 12
    ((source, target),) = cache.take_state_copies()
    assert target == slot_of(second)
    assert source not in (slot_of(first), slot_of(second))
    # Of a shorter one blocks are found, and no state.
    assert begun(cache, tokens[:9])[1] == 0
    assert cache.take_state_copies() == []
    cache.check_integrity()


def test_where_prompts_part_a_state_is_kept() -> None:
    cache, stem = cache_of(9), list(range(10))
    for i in range(3):
        tokens = [*stem, *range(50 + 10 * i, 59 + 10 * i)]
        table, found = begun(cache, tokens)
        assert found == (0, 0, 8)[i]
        borders = computed(cache, table, tokens, 19)
        assert borders == ([16], [8, 16], [16])[i]
        cache.free(table)
    cache.check_integrity()


def test_long_prompts_are_kept_at_intervals() -> None:
    cache, tokens = cache_of(20, interval=3 * SIZE), list(range(50))
    table, _ = begun(cache, tokens)
    assert computed(cache, table, tokens, 30) == [12, 24]
    assert computed(cache, table, tokens, 50) == [36, 48]
    cache.free(table)
    assert begun(cache, tokens[:40])[1] == 36


def test_a_long_prompt_takes_its_share_of_what_is_spare() -> None:
    """Its snapshots lie further apart, and neither they nor others' are driven out."""
    cache, tokens, other = cache_of(8, sequences=2, interval=SIZE), list(range(50)), [90, *range(9)]
    table, _ = begun(cache, other)
    assert computed(cache, table, other, 10) == [4, 8]
    cache.free(table)
    table, _ = begun(cache, tokens)
    assert [computed(cache, table, tokens, end) for end in (25, 50)] == [[20], [40, 48]]
    cache.free(table)
    assert begun(cache, tokens[:30])[1] == 20
    assert begun(cache, other)[1] == 8


def test_an_answer_keeps_its_last_border_alone() -> None:
    cache, tokens = cache_of(12), list(range(30))
    table, _ = begun(cache, tokens[:6])
    borders = computed(cache, table, tokens, 6)
    for end in range(7, 31):
        borders += computed(cache, table, tokens, end)
    assert borders == [4, 8, 12, 16, 20, 24, 28]
    cache.check_integrity()
    cache.free(table)
    assert begun(cache, tokens[:24])[1] == 4
    assert begun(cache, [*tokens, 1])[1] == 28


def test_a_state_that_was_found_is_not_replaced() -> None:
    cache, tokens = cache_of(12), list(range(30))
    table, _ = begun(cache, tokens[:6])
    for end in range(6, 10):
        computed(cache, table, tokens, end)
    other, found = begun(cache, [*tokens[:8], 99])
    assert found == 8
    for end in range(10, 14):
        computed(cache, table, tokens, end)
    cache.free(other)
    assert begun(cache, [*tokens[:8], 98])[1] == 8
    assert begun(cache, [*tokens[:12], 98])[1] == 12


def test_the_least_recently_used_states_go_first() -> None:
    cache = cache_of(4, sequences=2)
    prompts = [[10 * i + j for j in range(6)] for i in range(3)]
    for tokens in prompts:
        table, _ = begun(cache, tokens)
        assert computed(cache, table, tokens, 6) == [4]
        cache.free(table)
    table, found = begun(cache, [*prompts[0][:5], 1])
    assert found == 4
    cache.free(table)
    tables = [begun(cache, [90 + i])[0] for i in range(2)]
    for table in tables:  # both take a slot, of which one was blank
        cache.free(table)
    assert [begun(cache, [*prompts[i][:5], 1])[1] for i in (0, 1)] == [4, 0]
    cache.check_integrity()


def test_a_state_that_is_all_there_is_left_is_taken_as_it_is() -> None:
    """And is found no more."""
    cache = cache_of(3, sequences=2)
    first, other = list(range(6)), list(range(50, 56))
    table, _ = begun(cache, first)
    computed(cache, table, first, 6)
    cache.free(table)
    running, _ = begun(cache, other)
    (((_, waiting),),) = cache.compose_states([(running, 6)])
    table, found = begun(cache, [*first[:5], 1])
    assert found == 4
    assert cache.take_state_copies() == []
    assert {slot_of(table), slot_of(running), waiting} == {0, 1, 2}
    cache.check_integrity()
    cache.free(table)
    assert begun(cache, [*first[:5], 1])[1] == 0


def test_no_more_states_wait_to_be_found_than_are_spare() -> None:
    cache, tokens = cache_of(4, sequences=2, interval=SIZE), list(range(30))
    table, _ = begun(cache, tokens)
    assert [borders_of(cache, table, end) for end in (30, 33, 37)] == [[28], [32], []]
    assert begun(cache, [99])[0].state is not None
    cache.check_integrity()


def test_where_prompts_end_and_part_is_kept_before_intervals() -> None:
    """This holds for all prompts of a step, whichever is first."""
    cache, stem = cache_of(6, sequences=2, interval=3 * SIZE), list(range(10))
    other = [*stem, *range(50, 59)]
    table, _ = begun(cache, other)
    assert computed(cache, table, other, 19) == [12, 16]
    cache.free(table)
    prompts = [list(range(100, 130)), [*stem, *range(60, 69)]]
    tables = [begun(cache, tokens)[0] for tokens in prompts]
    ends = [len(tokens) for tokens in prompts]
    for table, end in zip(tables, ends, strict=True):
        assert cache.extend(table, 0, end, [])
    snapshots = cache.compose_states(list(zip(tables, ends, strict=True)))
    assert [[border for border, _ in each] for each in snapshots] == [[24, 28], [8, 16]]
    for table, tokens in zip(tables, prompts, strict=True):
        cache.commit(table, array("i", tokens), len(tokens))
        cache.free(table)
    assert begun(cache, [*prompts[0], 1])[1] == 28
    cache.check_integrity()


def test_a_reset_forgets_what_is_kept_and_what_comes() -> None:
    cache, tokens = cache_of(6), list(range(15))
    table, _ = begun(cache, tokens)
    computed(cache, table, tokens, 13)
    cache.reset()
    assert begun(cache, tokens)[1] == 0
    computed(cache, table, tokens, 15)
    cache.check_integrity()


def test_without_prefix_caching_nothing_is_kept() -> None:
    cache = KvCache(60, SIZE, enable_prefix_caching=False, states=StateLimits(6, 3, SIZE))
    table, _ = begun(cache, list(range(15)))
    assert computed(cache, table, list(range(15)), 15) == []
    assert begun(cache, list(range(15)))[1] == 0


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="3 sequences cannot share 2 states"):
        cache_of(2)
    with pytest.raises(ValueError, match="at borders of blocks"):
        cache_of(4, interval=SIZE + 1)


def test_a_lost_slot_is_noticed() -> None:
    cache = cache_of(3)
    table, _ = begun(cache, [1, 2])
    assert table.state is not None
    table.state.slot = (table.state.slot + 1) % 3
    with pytest.raises(AssertionError, match="state slot"):
        cache.check_integrity()
