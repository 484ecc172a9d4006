"""Rows of logits as distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.log_probabilities import log_probabilities

from penstock.errors import ModelError
from penstock.evaluate.distribution import Distribution, token_losses

ROWS = arrays(np.float32, 7, elements=st.floats(-80, 80, width=32))


@given(ROWS, ROWS)
def test_losses_and_divergences_are_those_of_the_definition(
    row: np.ndarray, other: np.ndarray
) -> None:
    ours, theirs = log_probabilities(row), log_probabilities(other)
    distribution = Distribution.of(row)
    for token in range(len(row)):
        assert distribution.loss(token) == pytest.approx(-float(ours[token]), abs=1e-6)
    expected = float((np.exp(ours) * (ours - theirs)).sum())
    found = distribution.divergence(Distribution.of(other))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert distribution.divergence(distribution) == 0.0


@given(ROWS, st.floats(-50, 50, width=32))
def test_what_is_added_to_all_logits_changes_nothing(row: np.ndarray, shift: float) -> None:
    moved = Distribution.of(row + np.float32(shift))
    assert Distribution.of(row).divergence(moved) == pytest.approx(0.0, abs=1e-4)


def test_the_likeliest_token_is_the_first_of_equals() -> None:
    assert Distribution.of(np.array([1, 3, 3], np.float32)).likeliest == 1


def test_impossible_tokens() -> None:
    some = Distribution.of(np.array([0, 0, -np.inf], np.float32))
    all_three = Distribution.of(np.array([0, 0, 0], np.float32))
    assert some.loss(2) == math.inf
    assert some.divergence(all_three) == pytest.approx(math.log(1.5))
    assert some.divergence(some) == 0.0
    assert all_three.divergence(some) == math.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_none(bad: float) -> None:
    row = np.array([0, bad, 1] if bad != -np.inf else [bad] * 3, np.float32)
    with pytest.raises(ModelError, match="are not numbers"):
        Distribution.of(row)
    with pytest.raises(ModelError, match="are not numbers"):
        token_losses(np.stack([np.zeros(3, np.float32), row]), [0, 0])
