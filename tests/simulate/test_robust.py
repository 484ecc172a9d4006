"""Fits that strange observations do not move."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.simulate.robust import robust_mean, robust_nonnegative


def test_factors_are_found_beside_outliers() -> None:
    random = np.random.default_rng(3)
    matrix = np.column_stack([np.ones(600), random.uniform(0, 100, 600), random.uniform(0, 5, 600)])
    true = np.array([2.0, 0.3, 0.0])
    seconds = matrix @ true * np.exp(0.03 * random.standard_normal(600))
    seconds[::10] *= random.uniform(3, 20, 60)
    found = robust_nonnegative(matrix, seconds)
    assert found[:2] == pytest.approx(true[:2], rel=0.03)
    assert 0 <= found[2] < 0.1


def test_exact_observations_give_exact_factors() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]])
    assert robust_nonnegative(matrix, matrix @ [3.0, 0.5]) == pytest.approx([3.0, 0.5])


def test_no_factor_is_negative() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]])
    assert robust_nonnegative(matrix, np.array([3.0, 2.0, 1.0]))[1] == 0


def test_low_observations_do_not_pull_more_than_high_ones() -> None:
    """Relative to what was observed, half as long would be twice as wrong as twice as long."""
    seconds = np.array([0.8, 1.0, 1.2] * 50)
    assert robust_nonnegative(np.ones((150, 1)), seconds)[0] == pytest.approx(1.0, rel=0.01)


def test_a_mean_without_the_strange() -> None:
    values = np.concatenate([np.linspace(0.9, 1.1, 90), np.full(10, 50.0)])
    assert robust_mean(values) == pytest.approx(1.0, abs=0.03)
    assert robust_mean(np.array([2.0, 2.0, 2.0, 9.0])) == 2.0
    assert robust_mean(np.array([5.0])) == 5.0
