"""Calibration of a model and its server: what is run, what is fitted, and the file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest
from support.needs import needs_native
from support.simulated import EvenClock, setup_of

from penstock.cli import main as cli
from penstock.cli.options import add_engine_arguments, engine_config, engine_words
from penstock.cli.parser import Parser
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.errors import PenstockError
from penstock.simulate import measured_steps, server_loads, server_rounds
from penstock.simulate.clock import StepShape
from penstock.simulate.others import Others
from penstock.simulate.recording import RecordedLoad
from penstock.simulate.server_loads import ServerLoad, alike
from penstock.simulate.server_process import serving
from penstock.simulate.step_times import ObservedStep


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
    # A round that was cut short has not come to the second scene.
    cut_short = [[[step(9.0)], [step(8.0)]], [[step(2.0)]]]
    assert measured_steps._middles(cut_short) == [step(2.0), step(8.0)]
    assert measured_steps._middles([*rounds[:2], []]) == [step(2.0)]


def test_loads_are_of_some_seconds_whatever_the_model() -> None:
    for seconds in (1e-4, 0.01, 2.0):
        setup = setup_of(EvenClock(seconds), context=512, seqs=8, blocks=600)
        load = ServerLoad.closed(setup, 4, alike(64, 96))
        assert load.requests is not None
        assert load.requests % 4 == 0
        assert load.simulated(setup).seconds < 12 or load.requests == 4
        assert load.workload.output_tokens.low <= 96


def test_what_others_disturbed_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it was, and as there is time; the less disturbed of both is kept."""
    others = iter([0.3, 0.0, 0.5, 0.2, 0.05, 0.04])
    asked: list[tuple[str, int]] = []

    def measured(name: str, load: ServerLoad, number: int, url: str) -> RecordedLoad:
        asked.append((name, number))
        return RecordedLoad(
            name=name,
            load=load,
            round=number,
            began=0.0,
            seconds=1.0,
            requests=[],
            template=None,
            others=Others(next(others), 0.0),
        )

    monkeypatch.setattr(server_rounds, "_measured", measured)
    load = ServerLoad(alike(8, 8), 1, 1)
    first = [measured(name, load, 0, "") for name in "abc"]
    kept = server_rounds._again(first, "", time.monotonic() + 60)
    assert asked[3:] == [("a", 0), ("c", 0), ("a", 0)]
    assert [(each.name, each.disturbed) for each in kept] == [("a", 0.04), ("b", 0.0), ("c", 0.05)]
    assert server_rounds._again(first, "", time.monotonic() - 1) == first


def test_random_loads_are_of_enough_requests_or_none() -> None:
    def requests(rate: float) -> float | None:
        load = server_rounds.random_load(512, rate)
        if load is None:
            return None
        assert load.rate is not None
        assert load.duration_s is not None
        assert 3.0 <= load.duration_s <= 10.0
        return load.rate * load.duration_s

    assert requests(50.0) == 150.0
    assert requests(2.0) == 8.0
    assert requests(0.5) == 5.0
    assert requests(0.1) is None


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
    monkeypatch.setattr(server_rounds, "_CLOSED", ((1, 16, 8), (4, 100, 3)))
    monkeypatch.setattr(server_rounds, "_PARTS", (0.3, 0.8))
    monkeypatch.setattr(server_rounds, "_RANDOM_S", 1.0)
    monkeypatch.setattr(server_rounds, "_BUDGET_S", 0.0)
    monkeypatch.setattr(server_loads, "CLOSED_S", 0.3)
    kept, path, trace = (tmp_path / name for name in ("kept", "here.json", "trace.csv"))
    few = ["--threads", "1", "--max-num-seqs", "8", "--max-num-batched-tokens", "128"]
    assert cli.main(["calibrate", *few, "--recording", str(kept), "--out", str(path)]) == 0
    out = capsys.readouterr().out
    assert "the median error of the fit is" in out
    made = json.loads(path.read_text())
    assert made["covered"]["sequences"] == 8
    assert made["checked"]["rounds"] == 2
    assert cli.main(["calibrate", *few, "--refit", str(kept), "--out", str(path)]) == 0
    assert json.loads(path.read_text()) == made
    assert cli.main(["calibrate", "--refit", str(kept), "--out", str(path)]) == 2
    assert "the recording is of other options: " in capsys.readouterr().err
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0.0,500,20\n1.5,300,10\n")
    here = ["--calibration", str(path), "--json", str(tmp_path / "out.json")]
    assert cli.main(["simulate", str(trace), "a:threads=1,max_num_seqs=4", *here]) == 0
    (run,) = msgspec.json.decode((tmp_path / "out.json").read_bytes())["runs"]
    assert run["completed"] == 2
    assert 0 < run["distributions"]["ttft"]["p50"] < 30
