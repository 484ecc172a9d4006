"""Differences of figures, and the noise in them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.load.compare.noise import (
    Effect,
    block_length,
    holm,
    of_repeats,
    of_requests,
    of_shares,
    of_slices,
    too_few,
)
from penstock.bench.load.confidence import least_samples, resampled


def test_welch_by_hand() -> None:
    """Variances 1 and 4 of three each: error sqrt(5/3), freedom (5/3)^2 / ((1/9 + 16/9) / 2)."""
    effect = of_repeats([1.0, 2.0, 3.0], [3.0, 5.0, 7.0])
    assert effect.difference == pytest.approx(3)
    assert effect.error == pytest.approx(math.sqrt(5 / 3))
    assert effect.freedom == pytest.approx(25 / 9 / (17 / 18))
    assert effect.p == pytest.approx(0.10448, abs=1e-5)  # as integrating the density gives
    assert effect.interval.low < 0 < effect.interval.high


def test_repeats_without_spread() -> None:
    assert of_repeats([2.0, 2.0], [2.0, 2.0]).p == 1
    assert of_repeats([2.0, 2.0], [3.0, 3.0]).p == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
@settings(deadline=None, max_examples=50)
def test_holm(chances: list[float]) -> None:
    adjusted = holm(chances)
    assert all(p <= q <= 1 for p, q in zip(chances, adjusted, strict=True))
    assert min(adjusted) == min(1.0, min(chances) * len(chances))
    ordered = [q for _, q in sorted(zip(chances, adjusted, strict=True))]
    assert ordered == sorted(ordered)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_how_many_answers_a_percentile_needs() -> None:
    assert [least_samples(part) for part in ("mean", "p50", "p90", "p99")] == [2, 6, 36, 368]
    assert "p99 needs 368" in too_few([[1.0]] * 367, "p99")
    assert too_few([[1.0]] * 368, "p99") == ""
    assert too_few([[1.0] * 46] * 8, "p99") == ""  # gaps of eight answers
    assert "needs 8" in too_few([[1.0] * 100] * 7 + [[]], "mean")


def test_pairs_cancel_what_differs_between_requests() -> None:
    """Requests of very different lengths, a tenth slower in B."""
    generator = np.random.default_rng(1)
    sizes = np.exp(generator.normal(0, 1, 60))
    a = [[value] for value in sizes * np.exp(generator.normal(0, 0.02, 60))]
    b = [[value] for value in 1.1 * sizes * np.exp(generator.normal(0, 0.02, 60))]
    pairs, apart = of_requests(a, b, "p50", True), of_requests(a, b, "p50", False)
    assert pairs is not None
    assert apart is not None
    assert pairs.error < apart.error / 4
    assert pairs.p < 0.01 < apart.p
    assert pairs.method == "pairs"


def test_figures_that_are_zero_have_no_ratio() -> None:
    assert of_requests([[0.0]] * 20, [[1.0]] * 20, "p50", False) is None
    assert of_slices([0.0, 0.0], [1.0, 1.0]) is None


def test_shares_that_are_none_or_all_have_an_error() -> None:
    same, other = of_shares([True] * 50, [True] * 50), of_shares([True] * 50, [False] * 50)
    assert same.difference == 0
    assert same.error > 0
    assert same.p == 1
    assert other.difference == -1
    assert other.p < 1e-6


def test_failures_that_come_together_say_less() -> None:
    together = of_shares([True] * 40 + [False] * 40, [True] * 80)
    spread = of_shares([True, False] * 40, [True] * 80)
    assert together.difference == spread.difference
    assert together.error > 1.5 * spread.error


def test_blocks_keep_neighbours_together() -> None:
    """Where neighbours are alike, single draws claim too much."""
    values = [[float(i // 10)] for i in range(100)]
    alone, blocks = (resampled(values, 1, block)[:, 0].std() for block in (1, 10))
    assert blocks > 2 * alone
    assert resampled(values, 1, 1000).shape == (200, 4)


def test_blocks_are_longer_where_neighbours_are_alike() -> None:
    generator = np.random.default_rng(5)
    noise = generator.normal(0, 1, 1000)
    alike = np.zeros(1000)
    for i in range(1, 1000):
        alike[i] = 0.9 * alike[i - 1] + noise[i]
    assert block_length(noise) in (10, 11, 12)
    assert 40 < block_length(alike) < 120  # tau is 19
    assert block_length(np.arange(1000.0)) == 250
    assert block_length(np.ones(64)) == 4
    assert block_length(np.array([])) == 1


def test_a_queue_that_drifts_is_noise() -> None:
    """Two runs whose queues grew otherwise: many answers, of which hardly any stand alone."""
    generator = np.random.default_rng(6)
    wrong = 0
    for _ in range(20):
        a, b = (
            [[value] for value in np.exp(0.3 * np.cumsum(generator.normal(0, 0.3, 200)))]
            for _side in "ab"
        )
        effect = of_requests(a, b, "p50", False)
        assert effect is not None
        wrong += effect.p < 0.005
    assert wrong <= 2


def test_a_median_between_clusters_is_uncertain() -> None:
    """Half of the requests take 0.1 s and half 0.2 s: which half has the median is chance."""
    generator = np.random.default_rng(7)
    a, b = (
        [[value] for value in generator.permutation([0.1] * fewer + [0.2] * (100 - fewer)).tolist()]
        for fewer in (53, 47)
    )
    effect = of_requests(a, b, "p50", False)
    assert effect is not None
    assert effect.error > 0.15  # the logarithm of 2 is 0.69


def test_ends_that_nobody_can_print() -> None:
    assert math.isfinite(Effect("requests", 0.0, 1e6, 1.0).ratio.high)
