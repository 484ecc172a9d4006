"""Histograms, against counting by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.interface.buckets import Buckets


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 3))))
def test_every_value_is_in_its_bucket(values: list[tuple[float, int]]) -> None:
    bounds = (0.5, 1.0, 10.0)
    buckets = Buckets.empty(bounds)
    for value, times in values:
        buckets.add(value, times)
    each = [value for value, times in values for _ in range(times)]
    for i, bound in enumerate(bounds):
        assert sum(buckets.counts[: i + 1]) == sum(value <= bound for value in each)
    assert buckets.count == len(each)
    assert abs(buckets.total - sum(each)) <= 1e-9 * max(1.0, sum(each))
