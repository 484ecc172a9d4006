"""Numbers as they are shown."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.bench.plots.words import duration, evenly_taken, number, time_unit, with_half


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (99.97, "100.0"),
        (1234.5, "1,234"),
        (-0.5, "-0.500"),
        (None, "-"),
        (float("nan"), "-"),
        (1e-15, "0.000000000"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_durations() -> None:
    assert [duration(s) for s in (8.5e-5, 0.412, 0.9994, 1.234, 0.0, -0.003, None)] == [
        "85.0 µs",
        "412 ms",
        "999 ms",
        "1.23 s",
        "0 s",
        "-3.00 ms",
        "-",
    ]


def test_intervals_say_how_many_digits_are_known() -> None:
    assert with_half(14.6178, 0.0107) == "14.618 ±0.011"
    assert with_half(732.4, 365.2) == "732 ±365"
    assert with_half(1.5, 0.0) == "1.50 ±0"


def test_units() -> None:
    assert time_unit([0.1, 1.9]).name == "ms"
    assert time_unit([0.1, 2.0]).name == "s"
    assert time_unit([]).of(0.123456) == 123.5


def test_samples_are_even_and_the_same() -> None:
    assert evenly_taken(3, 5).tolist() == [0, 1, 2]
    assert evenly_taken(101, 5).tolist() == [0, 25, 50, 75, 100]
    assert np.array_equal(evenly_taken(1000, 7), evenly_taken(1000, 7))
