"""Stages that do not start, die, stop, or are closed: processes of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bitwise import prompt, run
from support.needs import needs_native
from support.waiting import PATIENCE_S, runs, until

from penstock import LLM, AsyncLLM, SamplingParams
from penstock.config import EngineConfig
from penstock.engine.loader import load, open_model, plan_engine
from penstock.engine.ranks.wire import Measured
from penstock.engine.stages import links as links_module
from penstock.engine.stages import places
from penstock.engine.stages.executor import StagedExecutor
from penstock.engine.stages.links import StageLinks
from penstock.engine.stages.loading import _join
from penstock.engine.stages.places import NearStage
from penstock.engine.stages.wire import JoinPipeline
from penstock.errors import ConfigError, EngineDeadError, PenstockError

LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
BACKENDS = [pytest.param("cpu", marks=needs_native), "reference"]


def executor_of(llm: LLM) -> StagedExecutor:
    executor = llm._core._core._executor  # type: ignore[attr-defined]
    assert isinstance(executor, StagedExecutor)
    return executor


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stage_that_is_killed_ends_the_engine_with_its_cause(backend: str) -> None:
    with LLM(backend=backend, pipeline_parallel=3, max_num_seqs=4) as llm:
        pids = executor_of(llm).links.pids
        assert len(pids) == 2
        run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))
        stream = llm.stream([{"prompt_token_ids": prompt(1, 5, 200)}], LONG)
        next(stream)
        os.kill(pids[1], signal.SIGKILL)
        message = rf"^stage 1 \(pid {pids[1]}\) was ended by SIGKILL; if nobody killed it, memory"
        with pytest.raises(EngineDeadError, match=message):
            for _ in stream:
                pass
        with pytest.raises(EngineDeadError, match="stage 1"):  # and so does all that follows
            run(llm, [prompt(2, 5, 200)], SamplingParams(max_tokens=2))
    for pid in pids:
        until(lambda: not runs(pid), PATIENCE_S, "the stages have ended")  # noqa: B023


@needs_native
def test_a_stage_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is stopped sends no signs of life."""
    monkeypatch.setattr(places, "SILENCE_S", 3.0)
    monkeypatch.setattr(links_module, "EXIT_GRACE_S", 0.5)
    with LLM(backend="cpu", pipeline_parallel=2) as llm:
        (pid,) = executor_of(llm).links.pids
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineDeadError, match=rf"^stage 0 \(pid {pid}\) has not been heard of"):
            run(llm, [prompt(1, 5, 200)], LONG)
    until(lambda: not runs(pid), PATIENCE_S, "the stage has ended")


@needs_native
def test_a_stage_that_lives_and_does_not_finish_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "STEP_TIMEOUT_S", 0.5)
    with LLM(backend="cpu", pipeline_parallel=2) as llm:
        executor = executor_of(llm)
        monkeypatch.setattr(executor.links, "_pass_on", lambda number, result: None)
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


@needs_native
@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "pass", "del llm"])
def test_no_stage_outlives_its_parent(ending: str) -> None:
    code = f"""
    import os, signal, time
    from penstock import LLM
    llm = LLM(backend="cpu", pipeline_parallel=2)
    print(llm._core._core._executor.links.pids[0], flush=True)
    {ending}
    """
    parent = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=4 * PATIENCE_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pid = int(parent.stdout)
    until(lambda: not runs(pid), PATIENCE_S, "the stage has ended")


@needs_native
def test_an_engine_that_does_nothing_notices_that_a_stage_has_ended() -> None:
    async def main() -> None:
        llm = await AsyncLLM.start(EngineConfig(backend="cpu", pipeline_parallel=2))
        try:
            found = subprocess.run(
                ["ps", "-o", "pid=", "--ppid", str(llm.process.pid)], capture_output=True, text=True
            )
            os.kill(int(found.stdout), signal.SIGKILL)
            await asyncio.wait_for(llm.wait_dead(), PATIENCE_S)
            assert isinstance(llm.death, EngineDeadError)
            assert "stage 0" in str(llm.death)
        finally:
            await llm.aclose()

    asyncio.run(asyncio.wait_for(main(), 4 * PATIENCE_S))


def join_of(config: EngineConfig, **changes: Any) -> JoinPipeline:
    files = open_model(config)
    join = _join(plan_engine(config, files), files, 0)
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


def test_what_is_wrong_with_weights_is_told_once(tmp_path: Path) -> None:
    """And no stage stays."""
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, '
        '"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, '
        '"rms_norm_eps": 1e-6, "hidden_act": "silu", "torch_dtype": "float32"}'
    )
    config = EngineConfig(
        model=str(tmp_path), backend="reference", pipeline_parallel=2, load_format="dummy"
    )
    engine_plan = plan_engine(config)
    missing = msgspec.structs.replace(engine_plan.config, load_format="auto")
    with pytest.raises(PenstockError, match=r"weights|safetensors"):
        load(replace(engine_plan, config=missing))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_is_not_done_is_the_last(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(backend=backend, pipeline_parallel=2) as llm:
        executor = executor_of(llm)

        def interrupted(step: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(executor._own, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(llm, [prompt(1, 5, 200)], LONG)
        monkeypatch.undo()
        with pytest.raises(EngineDeadError, match="a step of several stages was not done: Keyb"):
            run(llm, [prompt(1, 5, 200)], LONG)
