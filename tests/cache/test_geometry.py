"""What windows let later tokens see."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.geometry import Chunk, Window, first_seen_block, is_seen_behind


@given(
    window=st.integers(1, 200) | st.integers(1, 200).map(Chunk),
    block=st.integers(0, 20),
    size=st.sampled_from([1, 4, 32]),
)
def test_a_block_is_seen_behind_some_prefix_or_behind_none(
    window: Window, block: int, size: int
) -> None:
    longer = range(block + 1, 60)
    seen = any(first_seen_block(window, count * size, size) <= block for count in longer)
    assert is_seen_behind(window, block, size) == seen


def test_the_last_block_of_a_chunk_is_seen_behind_none() -> None:
    assert [is_seen_behind(Chunk(128), block) for block in range(8)] == [True] * 3 + [False] + [
        True
    ] * 3 + [False]
