"""Processes of arrival."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.load.arrivals import Arrivals, Constant, Gamma, Ramp, parse_arrivals
from penstock.errors import ConfigError

rates = st.floats(0.01, 1000)


def _times(arrivals: Arrivals, count: int, seed: int = 0) -> list[float]:
    return list(islice(arrivals.times(np.random.default_rng(seed)), count))


@settings(deadline=None, max_examples=40)
@given(
    st.one_of(
        st.builds(Constant, rates),
        st.builds(Gamma, rates, st.floats(0.1, 5)),
        st.builds(Ramp, st.floats(0, 100), rates, st.floats(0.1, 100)),
    ),
    st.integers(0, 9),
)
def test_times_never_go_back(arrivals: Arrivals, seed: int) -> None:
    times = _times(arrivals, 50, seed)
    assert times == _times(arrivals, 50, seed)
    assert times[0] >= 0
    assert all(a <= b < math.inf for a, b in pairwise(times))


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gaps_of_gamma(cv: float) -> None:
    gaps = np.diff(_times(Gamma(20.0, cv), 20_000))
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_a_ramp_has_its_integral() -> None:
    """The rate goes from 10 to 30 a second within 50 s: 1,000 altogether, then 30 a second."""
    times = np.array(_times(Ramp(10, 30, 50), 2500, seed=1))
    assert (times < 25).sum() == pytest.approx(10 * 25 + 0.2 * 25**2, rel=0.1)
    assert (times < 50).sum() == pytest.approx(1000, rel=0.1)
    assert ((times >= 50) & (times < 80)).sum() == pytest.approx(900, rel=0.12)


def test_constant() -> None:
    assert _times(Constant(4), 3) == [0, 0.25, 0.5]


@pytest.mark.parametrize(
    ("text", "rate", "written"),
    [
        ("poisson", 2.0, "poisson"),
        ("constant", 2.0, "constant"),
        ("gamma:2.5", 2.0, "gamma:2.5"),
        ("at-once", None, "at-once"),
        ("ramp:1..20:60", None, "ramp:1..20:60"),
    ],
)
def test_written(text: str, rate: float | None, written: str) -> None:
    assert str(parse_arrivals(text, rate)) == written


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("poisson", None),
        ("gamma:0", 1.0),
        ("gamma:nan", 1.0),
        ("gamma", 1.0),
        ("ramp:1..0:5", None),
        ("ramp:1..2:0", None),
        ("ramp:-1..2:1", None),
        ("ramp:5", None),
        ("sometimes", 1.0),
    ],
)
def test_refused(text: str, rate: float | None) -> None:
    with pytest.raises(ConfigError, match="--arrivals"):
        parse_arrivals(text, rate)
