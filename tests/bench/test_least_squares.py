"""Lines through points that are given."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.bench.least_squares import line


def test_a_line_by_hand() -> None:
    """Means 2.5 and 4.25; sum of products of deviations 7.5 over 5 is the slope."""
    found = line(np.array([1.0, 2, 3, 4]), np.array([2.0, 4, 4, 7]))
    assert found is not None
    assert found.slope == pytest.approx(1.5)
    assert found.intercept == pytest.approx(0.5)
    assert found.at(10) == pytest.approx(15.5)
    assert found.low < 1.5 < found.high
    assert (found.points, found.groups) == (4, 4)


def test_an_exact_line_is_certain() -> None:
    found = line(np.arange(6.0), 3 - 2 * np.arange(6.0))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((-2, -2))
    assert found.certain


def test_too_little() -> None:
    assert line(np.array([]), np.array([])) is None
    assert line(np.arange(3.0), np.arange(3.0)) is None
    assert line(np.full(9, 5.0), np.arange(9.0)) is None
    assert line(np.arange(9.0), np.arange(9.0), np.repeat([1, 2, 7], 3)) is None


def test_points_of_a_group_say_no_more_than_one() -> None:
    generator = np.random.default_rng(3)
    x = np.arange(30.0)
    y = x + generator.normal(0, 3, 30)
    alone = line(x, y)
    copies = line(np.repeat(x, 10), np.repeat(y, 10), np.repeat(np.arange(30), 10))
    as_if = line(np.repeat(x, 10), np.repeat(y, 10))
    assert alone is not None
    assert copies is not None
    assert as_if is not None
    assert copies.high - copies.low == pytest.approx(alone.high - alone.low)
    assert as_if.high - as_if.low < (alone.high - alone.low) / 2


def test_intervals_hold_the_slope() -> None:
    """About 95 % of them, also where the scatter grows with x."""
    generator = np.random.default_rng(4)
    held = 0
    for _ in range(200):
        x = generator.uniform(0, 10, 60)
        found = line(x, 1 + 0.5 * x + generator.normal(0, 1, 60) * (0.2 + x))
        assert found is not None
        held += found.low <= 0.5 <= found.high
    assert 180 <= held <= 200
