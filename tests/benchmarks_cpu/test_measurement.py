"""Figures out of token times, worked out by hand."""

from __future__ import annotations

import pytest

from comparison.cases import Metric
from comparison.measurement import advantage, best_peer, figures, summarize


def test_decoding_counts_after_the_last_first_token() -> None:
    # The second request is still reading its prompt at 2 s; then both decode until 6 s.
    found = figures([[1.0, 2.0, 4.0, 6.0], [2.0, 4.0, 6.0]])
    assert found[Metric.DECODE] == 4 / 4.0
    assert found[Metric.OUTPUT] == 7 / 6.0
    assert found[Metric.TTFT] == 1.5


def test_one_token_has_no_decoding() -> None:
    assert figures([[0.5]]) == {Metric.OUTPUT: 2.0, Metric.TTFT: 0.5}


@pytest.mark.parametrize("times", [[], [[1.0], []], [[0.0]]])
def test_times_that_mean_nothing_are_refused(times: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="token"):
        figures(times)


def test_a_summary_has_the_spread_and_one_round_is_no_figure() -> None:
    rate = summarize([3.0, 9.0, 4.0])
    assert (rate.median, rate.lowest, rate.highest, rate.is_figure) == (4.0, 3.0, 9.0, True)
    assert not summarize([3.0]).is_figure
    with pytest.raises(ValueError, match="nothing"):
        summarize([])


def test_an_advantage_above_one_is_better_either_way() -> None:
    assert advantage(Metric.DECODE, ours=30.0, theirs=20.0) == 1.5
    assert advantage(Metric.TTFT, ours=20.0, theirs=30.0) == 1.5
    assert best_peer(Metric.TTFT, {"a": 2.0, "b": 1.0}) == "b"
    assert best_peer(Metric.OUTPUT, {"a": 2.0, "b": 1.0}) == "a"
    assert best_peer(Metric.OUTPUT, {}) is None
