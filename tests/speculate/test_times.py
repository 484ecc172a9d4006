from __future__ import annotations

import pytest

from penstock.speculate.times import Made, Times


def times(num_tokens: int = 4, reads: bool = True) -> Times:
    """A step of one row takes a second, and one that verifies two rows 1.2."""
    made = Times(num_tokens, reads)
    for _ in range(3):
        made.plain.add(1, 1.0)
        made.verified(1, 1, 1.2)
        made.made(Made(1, 1, 0.1, True), 0, 1.0)
    return made


def test_prices_are_of_verifying_and_of_drafting() -> None:
    assert times().prices(1, 1)[0] == pytest.approx(1.3)
    assert times(reads=False).prices(1, 1)[0] == pytest.approx(1.2)  # it was made already


def test_many_rows_are_felt_out() -> None:
    assert len(times(16).prices(1, 1)) == 3
    made = times(16)
    for _ in range(3):
        made.verified(1, 3, 1.4)
    assert len(made.prices(1, 1)) == 5


def test_fewer_tokens_cost_no_more_than_more() -> None:
    made = times()
    for _ in range(3):
        made.verified(1, 2, 9.0)  # long ago, with cold caches
        made.verified(1, 3, 1.3)
    prices = made.prices(1, 1)
    assert prices == sorted(prices)
    assert prices[1] < 2.0


def test_what_others_do_with_the_processor_is_not_booked() -> None:
    made = times()
    assert made.verified(1, 1, 100.0) == pytest.approx(2.4)
    drafting, reading = made.made(Made(1, 1, 50.0, True), 0, 1.0)
    assert drafting == pytest.approx(0.2)
    assert reading == 0.0


def test_reading_is_told_from_drafting() -> None:
    made = times()
    assert made.made(Made(1, 1, 50.1, False), 500, 1.0) == pytest.approx((0.1, 3.0))  # the first
    drafting, reading = made.made(Made(1, 1, 5.1, False), 100, 1.0)
    assert drafting == pytest.approx(0.1)
    assert reading == pytest.approx(5.0)
    assert made.reading == pytest.approx(0.05)
    made.doubt()
    assert made.reading == pytest.approx(0.025)


def test_a_step_with_other_rows_tells_nothing() -> None:
    made = times()
    assert made.verified(1, 1, None) == pytest.approx(1.2)
