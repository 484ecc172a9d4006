"""Student's t beside tables of it."""

from __future__ import annotations

import pytest

from penstock.bench.student import quantile, two_sided


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.7062), (2, 4.3027), (4, 2.7764), (20, 2.0860), (60, 2.0003), (1e6, 1.9600)],
)
def test_quantiles(freedom: float, t: float) -> None:
    assert quantile(0.95, freedom) == pytest.approx(t, abs=1e-4)
    assert two_sided(t, freedom) == pytest.approx(0.05, abs=1e-5)


def test_closed_forms() -> None:
    """One degree of freedom is Cauchy's distribution, two have a formula of their own."""
    assert two_sided(1.0, 1) == pytest.approx(0.5)
    for t in (0.1, 1.0, 5.0, 40.0):
        assert two_sided(t, 2) == pytest.approx(1 - t / (2 + t * t) ** 0.5, rel=1e-9)


def test_ends() -> None:
    assert two_sided(0.0, 3) == 1.0
    assert two_sided(float("inf"), 3) == 0.0
    assert 0 < two_sided(50.0, 3.7) < two_sided(5.0, 3.7) < 0.05
