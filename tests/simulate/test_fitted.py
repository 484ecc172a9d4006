"""Fits of recordings made with known constants: of a quiet machine, and of a restless one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.calibrations import GOOD, demo_calibration
from support.recordings import FRONT, STEPS, Weather, made_recording
from support.simulated import EvenClock, setup_of

from penstock.errors import ConfigError
from penstock.simulate.agreement import Agreement, figures, measured, simulated
from penstock.simulate.clock import StepShape
from penstock.simulate.fitted import Fitted, fitted
from penstock.simulate.others import Others
from penstock.simulate.recording import Recording
from penstock.simulate.self_check import self_check, undisturbed
from penstock.simulate.server_loads import ServerLoad, alike, mixed
from penstock.simulate.setup import Setup
from penstock.simulate.stages import Stages
from penstock.simulate.step_times import MeasuredClock

BARE = setup_of(EvenClock(1e-3), context=512, seqs=16, blocks=600, budget=64, block_size=32)
LOADS = (
    ServerLoad(alike(32, 40), 1, 8),
    ServerLoad(alike(40, 40), 16, 48),
    ServerLoad(mixed(512), 16, 64),
    *(ServerLoad(mixed(512), rate=rate, duration_s=2.0) for rate in (5.0, 15.0, 40.0)),
)
RESTLESS = Weather(outliers=0.1, slow=(2,), spread=0.05)
"""A tenth of the steps take many times as long, and one round of four half as long again."""


def made(weather: Weather | None = None, rounds: int = 4) -> Recording:
    return made_recording(BARE, LOADS, demo_calibration().key, weather, rounds)


def setup_with(found: Fitted) -> Setup:
    clock = MeasuredClock(found.steps)
    return replace(BARE, stages=Stages.one(clock), front=found.front, template=found.template)


@pytest.mark.slow
def test_known_constants_are_found_again() -> None:
    found = fitted(made())
    front = found.front
    for tokens in (1, 4, 16, 40, 64):
        assert found.steps.of_rows(tokens) == pytest.approx(STEPS.of_rows(tokens), rel=0.01)
    assert found.steps.read == pytest.approx(STEPS.read, rel=0.03)
    assert found.steps.pair == pytest.approx(STEPS.pair, rel=0.03)
    assert found.steps.behind == pytest.approx(STEPS.behind, rel=0.05)
    assert front.slower == pytest.approx(FRONT.slower, abs=0.003)
    assert front.request == pytest.approx(FRONT.request, rel=0.02)
    assert front.prompt_token == pytest.approx(FRONT.prompt_token, rel=0.05)
    assert front.answer == pytest.approx(FRONT.answer, rel=0.02)
    assert front.chunk == pytest.approx(FRONT.chunk, rel=0.05)
    assert front.handled == pytest.approx(FRONT.handled, rel=0.06)
    assert front.step == pytest.approx(FRONT.step, abs=3e-6)
    assert front.sequence == pytest.approx(FRONT.sequence, abs=3e-7)
    assert front.lost_request == pytest.approx(FRONT.lost_request, rel=0.05)


@pytest.mark.slow
def test_outliers_and_a_slow_period_do_not_move_them() -> None:
    found = fitted(made(RESTLESS))
    front = found.front
    true, clock = MeasuredClock(STEPS), MeasuredClock(found.steps)
    for shape in (
        StepShape(1, 1, 1, 0, (60.0,), (60.0,)),
        StepShape(8, 8, 8, 0, (1600.0,), (1600.0,)),
        StepShape(16, 16, 16, 0, (4000.0,), (4000.0,)),
        StepShape(64, 2, 3, 1, (500.0,), (9000.0,)),
    ):
        loaded = clock.seconds(shape) * (1 + front.slower)
        assert loaded == pytest.approx(true.seconds(shape) * (1 + FRONT.slower), rel=0.04)
    assert front.request == pytest.approx(FRONT.request, rel=0.03)
    assert front.answer == pytest.approx(FRONT.answer, rel=0.03)
    assert front.handled == pytest.approx(FRONT.handled, rel=0.1)
    assert front.lost_request == pytest.approx(FRONT.lost_request, rel=0.25)
    slowest = max(found.drifts, key=lambda each: found.drifts[each])
    assert slowest[1] == 2
    assert found.drifts[slowest] == pytest.approx(1.5, rel=0.1)


@pytest.mark.slow
def test_what_was_fitted_under_any_weather_predicts_the_quiet_machine() -> None:
    held_out = made_recording(
        BARE,
        [ServerLoad(mixed(512), rate=30.0, duration_s=4.0)],
        demo_calibration().key,
        rounds=2,
    )
    seen = measured(held_out.loads)
    for weather in (None, RESTLESS):
        setup = setup_with(fitted(made(weather)))
        found = list(figures(seen, simulated(held_out.loads, setup)))
        medians = Agreement.of([each for each in found if each.name.endswith("p50")])
        tails = Agreement.of([each for each in found if each.name.endswith("p99")])
        assert medians is not None
        assert tails is not None
        assert medians.worst < 0.09
        assert tails.worst < 0.15


@pytest.mark.slow
def test_a_calibration_says_how_well_its_rounds_agree() -> None:
    quiet = made()
    check = self_check(quiet, fitted(quiet), setup_with, 0)
    assert check.medians is not None
    assert check.medians.mean < 0.03
    assert check.drift < 0.01
    assert check.faults == []
    assert "POOR" not in str(check)
    restless = made(Weather(slow=(1,)))
    check = self_check(restless, fitted(restless), setup_with, 0)
    assert any("steps of one round differed by" in each for each in check.faults)
    assert "POOR: " in str(check)
    assert "calibrate again while nothing else runs" in str(check)


def test_one_round_compares_with_nothing() -> None:
    once = made(rounds=1)
    check = self_check(once, fitted(once), setup_with, 0)
    assert (check.medians, check.repeats) == (None, None)
    assert "one round of loads" in str(check)


def test_others_make_a_calibration_poor() -> None:
    assert GOOD.faults == []
    busy = msgspec.structs.replace(GOOD, others=0.7)
    assert busy.faults == ["others had 0.70 processors of this machine meanwhile"]


def test_disturbed_loads_are_left_out_as_far_as_two_rounds_remain() -> None:
    recording = made()
    loads = [
        msgspec.structs.replace(each, others=Others(0.5, 0.0)) if each.round in (1, 2) else each
        for each in recording.loads
    ]
    kept, left_out = undisturbed(msgspec.structs.replace(recording, loads=loads))
    assert left_out == 2 * len(LOADS)
    assert kept.rounds == (0, 3)
    loads = [msgspec.structs.replace(each, others=Others(0.5, 0.1)) for each in recording.loads]
    kept, left_out = undisturbed(msgspec.structs.replace(recording, loads=loads))
    assert len(kept.loads) == 2 * len(LOADS)


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    recording, path = made(rounds=1), tmp_path / "recording"
    recording.write(path)
    assert Recording.read(path) == recording
    msgspec.structs.replace(recording, version=99).write(path)
    with pytest.raises(ConfigError, match="version 99"):
        Recording.read(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ConfigError, match="no recording of a calibration"):
        Recording.read(path)
