"""How many replicas are wanted, and the figures by which."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.deploy.autoscaling import FEWEST_JUDGED, Figures, Goals, wanted
from penstock.deploy.figures import FigureReader

LOAD = Goals(sequences=4, goodput=None, window_s=30)
LEVEL = Goals(sequences=4, goodput=0.9, window_s=30)


def of(goals: Goals, *told: Figures, silent: int = 0, now: int = 0, since: float = math.inf) -> int:
    return wanted(goals, told, silent, now or len(told) + silent, since)


def busy(running: float, waiting: float = 0.0, judged: float = 0, met: float = 0) -> Figures:
    return Figures(running, waiting, judged, met)


@pytest.mark.parametrize(
    ("told", "number"),
    [
        ([busy(4)], 1),
        ([busy(4, 1)], 2),
        ([busy(2, 10)], 3),
        ([busy(4), busy(4)], 2),
        ([busy(2), busy(2)], 2),  # one alone would be full
        ([busy(2), busy(1)], 1),
        ([busy(0), busy(0), busy(0)], 0),
        ([busy(1), busy(0), busy(0)], 1),
    ],
)
def test_by_load(told: list[Figures], number: int) -> None:
    assert of(LOAD, *told) == number


def test_nothing_ends_while_a_replica_says_nothing() -> None:
    assert of(LOAD, busy(0), silent=1) == 2
    assert of(LOAD, busy(9), silent=1) == 3


def test_by_service_level() -> None:
    short = busy(3, judged=100, met=80)
    assert of(LEVEL, short) == 2
    assert of(LEVEL, busy(3, judged=100, met=90)) == 1
    assert of(LEVEL, *[busy(3, judged=100, met=40)] * 4) == 6  # half of them short of the goal
    # What is judged is older than the last step.
    assert of(LEVEL, short, since=29) == 1
    # Too few to tell.
    assert of(LEVEL, busy(3, judged=FEWEST_JUDGED - 1)) == 1
    # More than there are sequences would help nobody.
    assert of(LEVEL, busy(1, judged=100), busy(1, judged=100)) == 2
    assert of(LEVEL, busy(0, judged=100)) == 1


def test_nothing_ends_while_the_level_is_missed() -> None:
    assert of(LEVEL, busy(1, judged=50, met=10), busy(0), busy(0)) == 3
    assert of(LEVEL, busy(1, judged=50, met=50), busy(0), busy(0)) == 1


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), min_size=1, max_size=8),
    st.floats(0.5, 20),
)
def test_what_is_wanted_is_enough_and_stays(
    loads: list[tuple[float, float]], sequences: float
) -> None:
    goals = Goals(sequences, None, 30)
    told = [Figures(*load) for load in loads]
    total = sum(map(sum, loads))
    number = wanted(goals, told, 0, len(told), math.inf)
    assert number * sequences >= total or math.isclose(number * sequences, total)
    if number:  # spread over as many, the same load asks for as many
        spread = [Figures(total / number, 0.0)] * number
        assert wanted(goals, spread, 0, number, math.inf) in (number, number + 1)


def text(running: int, waiting: int, judged: int, met: int) -> str:
    return (
        f'penstock:num_requests_running{{model_name="m"}} {running}.0\n'
        f'penstock:num_requests_waiting{{model_name="m"}} {waiting}.0\n'
        "# TYPE penstock:request_slo_judged_total counter\n"
        f'penstock:request_slo_judged_total{{model_name="m"}} {judged}.0\n'
        f'penstock:request_slo_met_total{{model_name="m"}} {met}.0\n'
    )


def test_figures_are_of_a_window() -> None:
    reader = FigureReader(30)
    assert reader.read(text(1, 2, 100, 90), 0) == Figures(1, 2, 0, 0)
    assert reader.read(text(1, 2, 110, 95), 10) == Figures(1, 2, 10, 5)
    assert reader.read(text(1, 2, 110, 95), 30) == Figures(1, 2, 10, 5)
    assert reader.read(text(1, 2, 120, 95), 35) == Figures(1, 2, 20, 5)
    assert reader.read(text(1, 2, 120, 95), 40) == Figures(1, 2, 10, 0)
    assert reader.read(text(1, 2, 120, 95), 90) == Figures(1, 2, 0, 0)
    assert reader.read("", 91) == Figures()


def test_figures_of_a_server_that_was_started_anew() -> None:
    reader = FigureReader(30)
    reader.read(text(1, 0, 100, 90), 0)
    assert reader.read(text(1, 0, 3, 3), 5) == Figures(1, 0, 0, 0)
    assert reader.read(text(1, 0, 5, 4), 6) == Figures(1, 0, 2, 1)
