"""Stages that do not start, die, stop, or are closed: processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import Any

import msgspec
import pytest
from support.bitwise import prompt, run
from support.needs import needs_native
from support.waiting import PATIENCE_S, runs, until

from penstock import LLM, SamplingParams
from penstock.config import EngineConfig
from penstock.engine.loader import open_model, plan_engine
from penstock.engine.ranks.wire import Measured
from penstock.engine.stages import links as links_module
from penstock.engine.stages.executor import StagedExecutor
from penstock.engine.stages.links import StageLinks
from penstock.engine.stages.loading import _join
from penstock.engine.stages.places import NearStage
from penstock.engine.stages.wire import JoinPipeline
from penstock.errors import ConfigError, EngineDeadError

pytestmark = pytest.mark.slow

LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
BACKENDS = [pytest.param("cpu", marks=needs_native), "reference"]


def executor_of(llm: LLM) -> StagedExecutor:
    executor = llm._core._core._executor  # type: ignore[attr-defined]
    assert isinstance(executor, StagedExecutor)
    return executor


@needs_native
def test_a_stage_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is stopped sends no signs of life."""
    monkeypatch.setattr(links_module, "EXIT_GRACE_S", 0.5)
    with LLM(backend="cpu", pipeline_parallel=2) as llm:
        (pid,) = executor_of(llm).links.pids
        (channel,) = executor_of(llm).links._channels
        assert channel is not None
        receive, waits = channel.receive, threading.Event()

        def patient() -> Any:
            waits.set()
            return receive()

        monkeypatch.setattr(channel, "receive", patient)
        channel.set_timeout(3.0)  # from the next sign of life on
        assert waits.wait(PATIENCE_S)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineDeadError, match=rf"^stage 0 \(pid {pid}\) has not been heard of"):
            run(llm, [prompt(1, 5, 200)], LONG)
    until(lambda: not runs(pid), PATIENCE_S, "the stage has ended")


@needs_native
def test_a_stage_that_lives_and_does_not_finish_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "STEP_TIMEOUT_S", 0.5)
    with LLM(backend="cpu", pipeline_parallel=2) as llm:
        executor = executor_of(llm)
        monkeypatch.setattr(executor.links, "_pass_on", lambda stage, number, payload: None)
        with pytest.raises(EngineDeadError, match=r"^stage 0 .* has not finished a step within"):
            run(llm, [prompt(1, 5, 200)], LONG)


@needs_native
def test_a_late_stage_is_waited_for() -> None:
    """A second of delay changes nothing."""
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(backend="cpu") as one:
        expected = run(one, [prompt(1, 5, 200)], params)
    with LLM(backend="cpu", pipeline_parallel=2) as llm:
        (pid,) = executor_of(llm).links.pids
        os.kill(pid, signal.SIGSTOP)
        later = subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {pid}"], start_new_session=True)
        assert run(llm, [prompt(1, 5, 200)], params) == expected
        later.wait()


def join_of(config: EngineConfig, **changes: Any) -> JoinPipeline:
    files = open_model(config)
    join = _join(plan_engine(config, files), files, 0, b"session", "never")
    identity = msgspec.structs.replace(join.identity, **changes)
    return msgspec.structs.replace(join, identity=identity)


def start(links: StageLinks, join: JoinPipeline) -> None:
    try:
        links.start([join])
        links.tell(Measured({}, {}))
        links.wait_loaded()
    finally:
        links.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "x"}, r"^stage 0 .*: .* since the weight files \(.*, and x of the engine\)"),
        ({"penstock": "0", "plan": "x"}, r"the version of Penstock .* and the plan of operations"),
        ({"layers": "0 to 9"}, r"the layers \(0 to \d, and 0 to 9 of the engine\) differ"),
    ],
)
def test_a_stage_of_another_model_is_refused(changes: dict[str, str], message: str) -> None:
    links = StageLinks([NearStage()])
    config = EngineConfig(backend="reference", pipeline_parallel=2)
    with pytest.raises(ConfigError, match=message):
        start(links, join_of(config, **changes))


def test_a_process_that_does_not_start() -> None:
    links = StageLinks([NearStage("penstock.no_such_module")])
    config = EngineConfig(backend="reference", pipeline_parallel=2)
    with pytest.raises(EngineDeadError, match=r"stage 0 .* ended with exit code 1; see its"):
        start(links, join_of(config))
