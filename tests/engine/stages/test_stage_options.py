"""The options of pipelines: what is decided by them, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.config import EngineConfig
from penstock.engine.engine_plan import rank_limits, stage_threads
from penstock.engine.loader import load, plan_engine
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipeline_parallel": 0}, "pipeline_parallel must be 1 to 64, not 0; leave it out"),
        ({"pipeline_parallel": 65}, "must be 1 to 64, not 65"),
        ({"pipeline_parallel": 50}, r"pipeline_parallel 50: the model has \d+ layers; take at m"),
        ({"pipeline_parallel": 2, "tensor_parallel": 5}, "tensor_parallel 5: 5 ranks cannot share"),
        ({"pipeline_stages": "host"}, "^pipeline_stages: not HOST:PORT: 'host'"),
        ({"pipeline_stages": "a:1,:2"}, "not HOST:PORT: ':2'"),
        ({"pipeline_stages": "a:0"}, "not HOST:PORT: 'a:0'"),
        ({"pipeline_stages": "a:x"}, "not HOST:PORT: 'a:x'"),
        ({"pipeline_stages": ""}, "not HOST:PORT: ''"),
        ({"pipeline_stages": "a:1,a:1"}, "names a:1 twice"),
        ({"pipeline_stages": "a:1,b:1", "pipeline_parallel": 2}, "set pipeline_parallel to 3, or"),
        ({"pipeline_secret_file": "/x"}, "pipeline_secret_file has no effect without"),
        ({"pipeline_secret_file": "/x", "pipeline_parallel": 2}, "has no effect where all stages"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_engine(EngineConfig(backend="reference", **options))


@pytest.mark.parametrize("host", ["10.1.2.3", "stage.example"])
def test_stages_on_other_hosts_need_a_secret(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_PIPELINE_SECRET", raising=False)
    engine_plan = plan_engine(EngineConfig(backend="reference", pipeline_stages=f"{host}:5"))
    with pytest.raises(
        ConfigError, match=f"pipeline_stages {host}:5 is not on this machine alone, so"
    ):
        load(engine_plan)


def test_what_is_decided_and_why() -> None:
    one = plan_engine(EngineConfig(backend="reference", threads=4))
    several = plan_engine(EngineConfig(backend="reference", threads=4, pipeline_parallel=2))
    config = several.config
    assert config.pipeline_parallel == len(several.stages) == 2
    assert one.stages == ()
    assert config.reasons["threads"] == "as asked; 2 stages have 2 threads each"
    assert [stage_threads(several, stage) for stage in range(2)] == [(2, ()), (2, ())]
    assert re.search(r"^pipeline_parallel +2  \(as asked: so many", config.explain(), re.MULTILINE)
    assert "pipeline_parallel" not in one.config.reasons
    # A block of all layers takes what it takes in one process.
    pages = sum(stage.plan.kv_groups.page_bytes for stage in several.stages)
    assert config.kv_cache_bytes == config.num_blocks * pages
    assert pages == one.plan.kv_groups.page_bytes


def test_ranks_share_stages(capsys: pytest.CaptureFixture[str]) -> None:
    both = {"tensor_parallel": 2, "pipeline_parallel": 2}
    one = plan_engine(EngineConfig(backend="reference", threads=8))
    several = plan_engine(EngineConfig(backend="reference", threads=8, **both))
    config = several.config
    assert several.ranks == ()
    assert [len(stage.ranks) for stage in several.stages] == [2, 2]
    assert config.reasons["threads"] == "as asked; 4 processes have 2 threads each"
    assert [stage_threads(several, stage) for stage in range(2)] == [(4, ()), (4, ())]
    own = several.of_stage(1, 4, ())
    assert own.ranks == several.stages[1].ranks
    assert [rank_limits(own, rank).threads for rank in range(2)] == [2, 2]
    # A block of all layers and heads takes what it takes in one process.
    parts = [plan for stage in several.stages for plan in stage.parts]
    pages = sum(plan.kv_groups.page_bytes for plan in parts)
    assert config.kv_cache_bytes == config.num_blocks * pages
    assert pages == one.plan.kv_groups.page_bytes
    assert main(["explain", "--tensor-parallel", "2", "--pipeline-parallel", "2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^stage    1  layers .*, draws tokens, shared by 2 ranks", printed, re.M)
    assert "the part of rank 0 of stage 0 of 2:" in printed


def test_stages_elsewhere_have_threads_and_weights_of_their_own() -> None:
    far = plan_engine(EngineConfig(backend="reference", threads=4, pipeline_stages="127.0.0.1:5"))
    near = plan_engine(EngineConfig(backend="reference", threads=4, pipeline_parallel=2))
    assert far.config.pipeline_parallel == 2
    assert far.config.pipeline_stages == ("127.0.0.1:5",)
    assert stage_threads(far, 1) == (4, ())
    assert far.config.weight_bytes < near.config.weight_bytes
    mixed = EngineConfig(
        backend="reference", threads=4, pipeline_stages="127.0.0.1:5", pipeline_parallel=2
    )
    assert plan_engine(mixed).stages == far.stages
