from __future__ import annotations

import pytest

from penstock.speculate.costs import StepCosts


def measured(*costs: tuple[int, float]) -> StepCosts:
    made = StepCosts()
    for rows, seconds in costs:
        for _ in range(3):
            made.add(rows, seconds)
    return made


def test_the_middle_of_the_first_is_believed() -> None:
    costs = StepCosts()
    costs.add(1, 1.0)
    costs.add(1, 9.0)
    assert costs.seconds(3) == 0.0
    assert not costs.knows(1)
    costs.add(1, 1.2)
    assert costs.knows(1)
    assert costs.seconds(1) == 1.2


def test_between_and_beyond_what_was_measured() -> None:
    costs = measured((1, 1.0))
    assert costs.seconds(3) == pytest.approx(1.2)
    for _ in range(3):
        costs.add(5, 2.0)
    assert costs.seconds(3) == pytest.approx(1.5)
    assert costs.seconds(9) == pytest.approx(3.0)  # as steep as before, not flat
    assert measured((10, 3.0), (20, 2.0)).seconds(40) == 2.0  # noise: more rows are not cheaper
    assert measured((8, 1.0), (9, 3.0), (2, 0.7)).seconds(16) < 10.0  # nor by neighbours' noise


def test_nothing_takes_no_time() -> None:
    costs = StepCosts(free=True)
    assert costs.seconds(4) == 0.0
    for _ in range(3):
        costs.add(2, 1.0)
    assert costs.seconds(1) == pytest.approx(0.5)
    assert costs.seconds(4) == pytest.approx(2.0)


def test_many_rows_are_told_apart_roughly() -> None:
    costs = measured((32, 1.0), (64, 2.0))
    assert costs.seconds(48) == pytest.approx(1.5, rel=0.05)
    assert costs.seconds(128) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize(("rows", "known"), [(8, True), (9, True), (7, False), (32, False)])
def test_what_is_near_is_known(rows: int, known: bool) -> None:
    assert measured((8, 1.0)).knows(rows) is known
    assert measured((8, 1.0), (32, 2.0)).knows(20)
    assert not measured((2, 1.0), (32, 2.0)).knows(20)


def test_it_follows_what_changes() -> None:
    costs = measured((1, 1.0))
    for _ in range(200):
        costs.add(1, 3.0)
    assert costs.seconds(1) == pytest.approx(3.0, rel=0.01)
    for _ in range(6):
        costs.add(1, 2.0)
    assert costs.seconds(1) > 2.6
    costs.renew(1)
    for _ in range(6):
        costs.add(1, 2.0)
    assert costs.seconds(1) < 2.4


def test_a_step_that_was_held_up_counts_little() -> None:
    costs = measured((1, 1.0))
    for _ in range(10):
        costs.add(1, 1.0)
    costs.add(1, 1000.0)
    assert costs.seconds(1) < 1.1
