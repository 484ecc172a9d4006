"""Where steps are among the stages of a pipeline, in any order of what these tell."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from penstock.engine.stages.flights import Flights
from penstock.engine.stages.wire import StageResult
from penstock.interface.executor import OpTime
from penstock.processes.frames import WireError

ROWS = np.arange(4, dtype=np.uint8)
STEP: Any = "a step"


def test_stages_run_a_step_one_after_the_other() -> None:
    flights = Flights(2)
    begun = flights.begin(5, STEP, is_timed=False)
    assert not flights.is_done(5)
    assert flights.ran(0, StageResult(5), ROWS) is begun
    assert flights.ran(1, StageResult(5), ROWS) is None
    assert flights.is_done(5)
    assert flights.end(5).rows is ROWS


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_stages_that_feed_each_other_tell_in_any_order(order: tuple[int, ...]) -> None:
    """Also once the step is over and was taken."""
    flights = Flights(3)
    flights.feeding |= {0, 1}
    flights.begin(0, STEP, is_timed=False)
    for stage in order:
        assert flights.ran(stage, StageResult(0), ROWS) is None
        if stage == 2:
            assert flights.is_done(0)
            flights.end(0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_step_that_is_timed_waits_for_the_times_of_all(order: tuple[int, ...]) -> None:
    flights = Flights(3)
    flights.feeding |= {0, 1}
    flights.begin(0, STEP, is_timed=True)
    for told, stage in enumerate(order, 1):
        flights.ran(stage, StageResult(0, [OpTime(stage, 0.0)]), ROWS)
        assert flights.is_done(0) == (told == 3)
    assert flights.end(0).ops == {stage: [OpTime(stage, 0.0)] for stage in range(3)}


@pytest.mark.parametrize("stage", [1, 2])
def test_a_stage_that_does_not_have_the_step_is_refused(stage: int) -> None:
    flights = Flights(3)
    flights.begin(0, STEP, is_timed=False)
    for number in (0, 7):
        with pytest.raises(WireError, match=f"step {number} came from a stage that does not have"):
            flights.ran(stage, StageResult(number), ROWS)
    flights.ran(0, StageResult(0), ROWS)
    with pytest.raises(WireError):  # and no stage has it twice
        flights.ran(0, StageResult(0), ROWS)
