"""Summaries of counted durations are those of the durations themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.stats import summarize
from penstock.simulate import gaps as module
from penstock.simulate.gaps import Gaps


@given(
    st.lists(st.integers(0, 400), max_size=30),
    st.lists(st.tuples(st.lists(st.integers(0, 400), max_size=6), st.integers(1, 9)), max_size=6),
)
def test_a_summary_is_that_of_the_samples(
    single: list[int], several: list[tuple[list[int], int]]
) -> None:
    every = [us / 1e6 for us in single]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BUFFERED", 5)
        counted, other = Gaps(), Gaps()
        for us in single:
            counted.add(us / 1e6)
        for values, times in several:
            other.add_each([us / 1e6 for us in values], times)
            every += [us / 1e6 for us in values] * times
        counted.join(other)
    expected, found = summarize(every), counted.summary()
    assert counted.count == len(every)
    if expected is None or found is None:
        assert expected is found
        return
    for name in expected.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-12)
