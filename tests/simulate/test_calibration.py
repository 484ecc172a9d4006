"""Calibration of a model and its server: what is run, what is fitted, and the file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.calibrations import demo_calibration
from support.needs import needs_native
from support.simulated import EvenClock, setup_of

from penstock.bench.progress import Unseen
from penstock.cli import main as cli
from penstock.cli.options import add_engine_arguments, engine_config, engine_words
from penstock.cli.parser import Parser
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.errors import PenstockError
from penstock.simulate import measured_server, measured_steps, server_loads
from penstock.simulate.calibration import ObservedStep
from penstock.simulate.clock import StepShape
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.measured_server import MeasuredServer
from penstock.simulate.server_loads import ServerLoad, alike, mixed
from penstock.simulate.server_process import serving


def test_scenes_fit_into_the_engine_and_cover_its_steps() -> None:
    for options in (
        EngineConfig(backend="cpu"),
        EngineConfig(backend="cpu", max_num_seqs=5, max_num_batched_tokens=40, max_model_len=90),
        EngineConfig(backend="cpu", kv_cache_bytes=1 << 20, max_model_len=256),
    ):
        plan = plan_engine(options)
        config = plan.config
        scenes = list(measured_steps._scenes(plan))
        for scene in scenes:
            lengths = [*scene.first, *scene.later]
            assert len(lengths) <= config.max_num_seqs
            assert all(each.prompt + each.output <= config.max_model_len for each in lengths)
            blocks = sum(-(-(each.prompt + each.output) // 32) for each in lengths)
            assert blocks <= config.num_blocks
        fitting = min(config.max_num_seqs, config.num_blocks)
        assert max(len(scene.first) for scene in scenes) >= fitting * 3 // 4
        chunks = [scene.first[0].prompt for scene in scenes if len(scene.first) == 1]
        assert max(chunks) >= min(config.max_num_batched_tokens, config.max_model_len - 16)


def test_steps_count_with_the_middle_of_their_rounds() -> None:
    shape = StepShape(1, 1, 1, 0, (1.0,), (1.0,))

    def step(seconds: float) -> ObservedStep:
        return ObservedStep(shape, 0, seconds)

    rounds = [[[step(9.0)]], [[step(2.0)]], [[step(4.0)]]]
    assert measured_steps._middles(rounds) == [step(3.0)]
    assert measured_steps._middles(rounds[:1]) == [step(9.0)]
    assert measured_steps._middles([*rounds[:2], []]) == [step(2.0)]


def test_loads_are_of_some_seconds_whatever_the_model() -> None:
    for seconds in (1e-4, 0.01, 2.0):
        setup = setup_of(EvenClock(seconds), context=512, seqs=8, blocks=600)
        load = ServerLoad.closed(setup, 4, alike(64, 96))
        assert load.requests is not None
        assert load.requests % 4 == 0
        assert load.simulated(setup).seconds < 12 or load.requests == 4
        assert load.workload.output_tokens.low <= 96


@pytest.mark.parametrize(
    ("errors", "kept", "times"),
    [
        ([0.1, 0.0], 0.1, 1),
        ([-0.3, 0.1], 0.1, 2),
        ([0.3, -0.5], 0.3, 2),
    ],
)
def test_what_was_disturbed_is_measured_once_more(
    monkeypatch: pytest.MonkeyPatch, errors: list[float], kept: float, times: int
) -> None:
    asked: list[str] = []

    def once(url: str, *_: object) -> MeasuredServer:
        asked.append(url)
        error = errors[len(asked) - 1]
        return MeasuredServer(
            measured_server.NO_FRONT, 0, {"ttft.p50": error, "ttft.p99": 9.0, "itl.p50": 0.01}
        )

    monkeypatch.setattr(measured_server, "_measured_once", once)
    bare = setup_of(EvenClock(1e-3))
    found = measured_server.measure_server("http://there", bare, Unseen())
    assert (found.checked["ttft.p50"], len(asked)) == (kept, times)


def test_random_loads_are_of_enough_requests_or_none() -> None:
    def requests(rate: float) -> float | None:
        load = measured_server._random(512, rate, 6.0)
        if load is None:
            return None
        assert load.rate is not None
        assert load.duration_s is not None
        assert 6.0 <= load.duration_s <= 20.0
        return load.rate * load.duration_s

    assert requests(50.0) == 300.0
    assert requests(2.0) == 20.0
    assert requests(0.5) == 10.0
    assert requests(0.1) is None


def test_what_a_server_takes_is_found_again() -> None:
    """The figures that are fitted to are simulated with known constants here."""
    true = FrontTimes(
        request=2e-3,
        prompt_token=1e-5,
        answer=5e-4,
        chunk=75e-6,
        handled=1.5e-3,
        step=1e-4,
        slower=0.05,
        sequence=2e-5,
        lost_request=8e-4,
    )
    bare = setup_of(EvenClock(1e-3, 1e-5), context=512, seqs=16, blocks=600, budget=64)
    real = replace(bare, front=true)
    loads = [
        ServerLoad(alike(32, output), count, rounds * count)
        for count, output, rounds in ((1, 40, 4), (16, 40, 4), (12, 4, 10))
    ]
    loads += [ServerLoad(mixed(512), rate=rate, duration_s=3.0) for rate in (5.0, 20.0, 50.0)]
    found = [each.simulated(real) for each in loads]
    front = measured_server.fit(replace(bare, front=measured_server.NO_FRONT), loads, found)
    assert 2.0 < (front.request + front.answer) * 1e3 < 4.5  # some of it may be the tokens'
    assert front.handled * 1e3 == pytest.approx(1.5, abs=0.5)
    # Of a step of a millisecond these are the same.
    assert front.slower * 1e3 + front.step * 1e6 == pytest.approx(150, abs=20)
    assert front.sequence * 1e6 == pytest.approx(20, abs=5)
    held_out = ServerLoad(mixed(512), rate=35.0, duration_s=4.0)
    ours, theirs = held_out.simulated(replace(bare, front=front)), held_out.simulated(real)
    assert ours.ttft.p50 == pytest.approx(theirs.ttft.p50, rel=0.08)
    assert ours.e2el.p99 == pytest.approx(theirs.e2el.p99, rel=0.1)


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(),
        EngineConfig(model="m", threads="0-3", max_num_seqs=4, enable_prefix_caching=False),
        EngineConfig(quantize_activations=False, ignore_config_field=("a", "b.c"), seed=3),
    ],
)
def test_options_are_written_as_they_are_read(config: EngineConfig) -> None:
    parser = Parser("test", "")
    add_engine_arguments(parser)
    assert engine_config(parser.parse(engine_words(config))) == config


def test_a_server_that_does_not_start() -> None:
    with (
        pytest.raises(PenstockError, match="did not start"),
        serving(["/there/is/no/model"]),
    ):
        pass


@needs_native
@pytest.mark.slow
def test_a_calibration_is_made_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measured_steps, "_ROUNDS", 2)
    monkeypatch.setattr(measured_steps, "_BATCHES", (1, 4, 8))
    monkeypatch.setattr(measured_steps, "_CHUNKS", (1, 33, 130))
    monkeypatch.setattr(measured_server, "_CLOSED", ((1, 16, 8), (4, 100, 3)))
    monkeypatch.setattr(measured_server, "_RANDOM_S", 1.0)
    monkeypatch.setattr(server_loads, "CLOSED_S", 0.3)
    monkeypatch.setattr(measured_server, "_CHECK_S", 1.0)
    path, trace = tmp_path / "here.json", tmp_path / "trace.csv"
    few = ["--threads", "1", "--max-num-seqs", "8", "--max-num-batched-tokens", "128"]
    assert cli.main(["calibrate", *few, "--out", str(path)]) == 0
    out = capsys.readouterr().out
    assert "the median error of the fit is" in out
    made = json.loads(path.read_text())
    assert made["covered"]["sequences"] == 8
    assert set(made["checked"]) == {
        f"{name}.{part}" for name in ("ttft", "itl", "e2el") for part in ("p50", "p99")
    }
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0.0,500,20\n1.5,300,10\n")
    here = ["--calibration", str(path), "--json", str(tmp_path / "out.json")]
    assert cli.main(["simulate", str(trace), "a:threads=1,max_num_seqs=4", *here]) == 0
    (run,) = msgspec.json.decode((tmp_path / "out.json").read_bytes())["runs"]
    assert run["completed"] == 2
    assert 0 < run["distributions"]["ttft"]["p50"] < 30


@pytest.mark.parametrize(
    ("checked", "told"),
    [
        ({}, ""),
        ({"ttft.p50": 0.02}, "simulated beside measured: ttft.p50 +2.0%"),
        (
            {"ttft.p50": 0.02, "itl.p50": -0.9},
            "simulated beside measured: ttft.p50 +2.0%, itl.p50 -90.0%; that is far off, so "
            "calibrate again while nothing else runs",
        ),
    ],
)
def test_a_calibration_says_how_far_off_it_was(checked: dict[str, float], told: str) -> None:
    assert msgspec.structs.replace(demo_calibration(), checked=checked).check == told
