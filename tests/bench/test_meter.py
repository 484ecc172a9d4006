"""What a step is said to read of the cache."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.geometry import Chunk, Window, first_seen
from penstock.plan.costs import seen


@given(
    lens=st.lists(st.integers(1, 300), min_size=1, max_size=5),
    window=st.none() | st.integers(1, 90) | st.builds(Chunk, st.integers(1, 90)),
)
def test_the_last_of_so_many_tokens_sees_its_window(lens: list[int], window: Window | None) -> None:
    expected = [n if window is None else n - first_seen(window, n - 1) for n in lens]
    assert seen(np.array(lens, np.int32), window).tolist() == expected
