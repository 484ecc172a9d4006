"""The options of pipelines: what is decided by them, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.needs import needs_native

from penstock.config import EngineConfig
from penstock.engine.engine_plan import stage_limits
from penstock.engine.loader import load, plan_engine
from penstock.errors import ConfigError
from penstock.speculative_config import Ngram


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipeline_parallel": 0}, "pipeline_parallel must be 1 to 64, not 0; leave it out"),
        ({"pipeline_parallel": 65}, "must be 1 to 64, not 65"),
        ({"pipeline_parallel": 50}, r"pipeline_parallel 50: the model has \d+ layers; take at m"),
        ({"pipeline_parallel": 2, "tensor_parallel": 2}, "not go with tensor_parallel yet"),
        ({"pipeline_parallel": 2, "speculative": Ngram()}, "not go with speculative yet"),
        ({"pipeline_parallel": 2, "artifact_dir": "/x"}, "stages pack their weights at each start"),
        ({"pipeline_stages": "host"}, "'host' is no address of a stage; write HOST:PORT"),
        ({"pipeline_stages": "a:1,:2"}, "':2' is no address"),
        ({"pipeline_stages": "a:0"}, "'a:0' is no address"),
        ({"pipeline_stages": "a:x"}, "'a:x' is no address"),
        ({"pipeline_stages": ""}, "'' is no address"),
        ({"pipeline_stages": "a:1,a:1"}, "names a:1 twice"),
        ({"pipeline_stages": "a:1,b:1", "pipeline_parallel": 2}, "set pipeline_parallel to 3, or"),
        ({"pipeline_secret_file": "/x"}, "pipeline_secret_file has no effect without"),
        ({"pipeline_secret_file": "/x", "pipeline_parallel": 2}, "has no effect where all stages"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_engine(EngineConfig(backend="reference", **options))


@needs_native
def test_an_artifact_of_stages_is_not_built() -> None:
    engine_plan = plan_engine(EngineConfig(backend="cpu", pipeline_parallel=2))
    with pytest.raises(ConfigError, match="packed weights of several stages are not kept yet"):
        load(engine_plan, keeping="always")


@pytest.mark.parametrize("host", ["10.1.2.3", "stage.example"])
def test_stages_on_other_hosts_need_a_secret(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_PIPELINE_SECRET", raising=False)
    engine_plan = plan_engine(EngineConfig(backend="reference", pipeline_stages=f"{host}:5"))
    with pytest.raises(ConfigError, match=f"{host}:5 is on another host, and stages there need a"):
        load(engine_plan)


def test_what_is_decided_and_why() -> None:
    one = plan_engine(EngineConfig(backend="reference", threads=4))
    several = plan_engine(EngineConfig(backend="reference", threads=4, pipeline_parallel=2))
    config = several.config
    assert config.pipeline_parallel == len(several.stages) == 2
    assert one.stages == ()
    assert config.reasons["threads"] == "as asked; 2 stages have 2 threads each"
    assert [stage_limits(several, stage).threads for stage in range(2)] == [2, 2]
    assert re.search(r"^pipeline_parallel +2  \(as asked: so many", config.explain(), re.MULTILINE)
    assert "pipeline_parallel" not in one.config.reasons
    # A block of all layers takes what it takes in one process.
    pages = sum(stage.plan.kv_groups.page_bytes for stage in several.stages)
    assert config.kv_cache_bytes == config.num_blocks * pages
    assert pages == one.plan.kv_groups.page_bytes


def test_stages_elsewhere_have_threads_and_weights_of_their_own() -> None:
    far = plan_engine(EngineConfig(backend="reference", threads=4, pipeline_stages="127.0.0.1:5"))
    near = plan_engine(EngineConfig(backend="reference", threads=4, pipeline_parallel=2))
    assert far.config.pipeline_parallel == 2
    assert far.config.pipeline_stages == ("127.0.0.1:5",)
    assert stage_limits(far, 1).threads == 4
    assert far.config.weight_bytes < near.config.weight_bytes
    mixed = EngineConfig(
        backend="reference", threads=4, pipeline_stages="127.0.0.1:5", pipeline_parallel=2
    )
    assert plan_engine(mixed).stages == far.stages
