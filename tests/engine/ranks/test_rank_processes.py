"""Processes of ranks that do not start, die, or are closed."""

from __future__ import annotations

import asyncio
import contextlib
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
from penstock.engine.ranks.executor import RankedExecutor
from penstock.engine.ranks.identity import RankIdentity
from penstock.engine.ranks.processes import RankProcesses
from penstock.engine.ranks.wire import JoinGroup, Measured
from penstock.errors import ConfigError, EngineDeadError, PenstockError
from penstock.interface.rank_segment import RankSegment

LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
BACKENDS = [pytest.param("cpu", marks=needs_native), "reference"]


def options(backend: str, **more: Any) -> dict[str, Any]:
    return {"backend": backend, "tensor_parallel": 3, "max_num_seqs": 4, **more}


def children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            pid, _, rest = stat.read_text().partition(" ")
            if int(rest.rpartition(")")[2].split()[1]) == parent:
                found.append(int(pid))
    return found


def ranks_of(llm: LLM) -> tuple[int, ...]:
    executor = llm._core._core._executor  # type: ignore[attr-defined]
    assert isinstance(executor, RankedExecutor)
    return executor.processes.pids


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_is_killed_ends_the_engine_with_its_cause(backend: str) -> None:
    with LLM(**options(backend)) as llm:
        pids = ranks_of(llm)
        assert len(pids) == 2
        run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))
        stream = llm.stream([{"prompt_token_ids": prompt(1, 5, 200)}], LONG)
        next(stream)
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=r"of rank 2 .* was ended by SIGKILL; if nobody"):
            for _ in stream:
                pass
        with pytest.raises(EngineDeadError, match="of rank 2"):  # and so does all that follows
            run(llm, [prompt(2, 5, 200)], SamplingParams(max_tokens=2))
    for pid in pids:
        until(lambda: not runs(pid), PATIENCE_S, "the ranks have ended")  # noqa: B023


@needs_native
def test_a_rank_that_dies_while_others_wait_for_it() -> None:
    """One that is stopped keeps the others waiting in the middle of a step."""
    with LLM(**options("cpu")) as llm:
        pids = ranks_of(llm)
        os.kill(pids[0], signal.SIGSTOP)
        stopped = subprocess.Popen(
            ["sh", "-c", f"sleep 1; kill -KILL {pids[0]}"], start_new_session=True
        )
        with pytest.raises(EngineDeadError, match="of rank 1"):
            run(llm, [prompt(1, 5, 200)], LONG)
        stopped.wait()


@needs_native
@pytest.mark.slow
def test_closing_ends_ranks_that_are_stopped() -> None:
    llm = LLM(**options("cpu", tensor_parallel=2))
    (pid,) = ranks_of(llm)
    os.kill(pid, signal.SIGSTOP)
    llm.close()
    until(lambda: not runs(pid), PATIENCE_S, "the rank has ended")


@needs_native
@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "pass", "del llm"])
def test_no_rank_outlives_its_parent(ending: str) -> None:
    code = f"""
    import os, signal, time
    from penstock import LLM
    llm = LLM(backend="cpu", tensor_parallel=2)
    print(llm._core._core._executor.processes.pids[0], flush=True)
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
    until(lambda: not runs(pid), PATIENCE_S, "the rank has ended")


@needs_native
def test_a_fork_leaves_the_ranks_alone() -> None:
    code = """
    import os
    from penstock import LLM, SamplingParams
    llm = LLM(backend="cpu", tensor_parallel=2)
    if os.fork() == 0:
        raise SystemExit(0)  # and closes what it has at its end
    assert os.wait()[1] == 0
    (output,) = llm.generate(["def f(x):"], SamplingParams(max_tokens=3, temperature=0))
    print(output.outputs[0].finish_reason)
    """
    parent = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=4 * PATIENCE_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout.strip() == "length"


@needs_native
def test_an_engine_in_its_own_process_reports_the_rank() -> None:
    async def main() -> None:
        llm = await AsyncLLM.start(EngineConfig(backend="cpu", tensor_parallel=2))
        try:
            (pid,) = children_of(llm.process.pid)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="of rank 1"):
                async for _ in llm.generate("def f(x):", LONG):
                    pass
        finally:
            await llm.aclose()

    asyncio.run(asyncio.wait_for(main(), 4 * PATIENCE_S))


@needs_native
def test_an_engine_that_does_nothing_notices_that_a_rank_has_ended() -> None:
    async def main() -> None:
        llm = await AsyncLLM.start(EngineConfig(backend="cpu", tensor_parallel=2))
        try:
            (pid,) = children_of(llm.process.pid)
            os.kill(pid, signal.SIGKILL)
            await asyncio.wait_for(llm.wait_dead(), PATIENCE_S)
            assert isinstance(llm.death, EngineDeadError)
            assert "of rank 1" in str(llm.death)
        finally:
            await llm.aclose()

    asyncio.run(asyncio.wait_for(main(), 4 * PATIENCE_S))


def join_of(config: EngineConfig, processes: RankProcesses, **changes: Any) -> Any:
    files = open_model(config)
    engine_plan = plan_engine(config, files)
    identity = RankIdentity.of(engine_plan, files, 1)
    identity = msgspec.structs.replace(identity, **changes)

    def join(rank: int, columns: int) -> JoinGroup:
        segment = processes.segment
        return JoinGroup(
            config,
            engine_plan.config,
            identity,
            rank,
            segment.fd,
            segment.slot_bytes,
            columns,
            "never",
        )

    return join


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "others"}, r"rank 1: .* since the weight files \(.*, and others of rank 0\)"),
        ({"penstock": "0.0", "plan": "x"}, r"the version of Penstock .* and the plan of oper"),
    ],
)
def test_a_rank_of_another_model_is_refused(changes: dict[str, str], message: str) -> None:
    config = EngineConfig(backend="reference", tensor_parallel=2)
    processes = RankProcesses(RankSegment(2, 4096), 2)
    try:
        processes.start(join_of(config, processes, **changes))
        processes.send(Measured({}, {}))
        with pytest.raises(ConfigError, match=message):
            processes.wait_loaded()
    finally:
        processes.close()


def test_a_process_that_does_not_start() -> None:
    config = EngineConfig(backend="reference", tensor_parallel=2)
    processes = RankProcesses(RankSegment(2, 4096), 2, module="penstock.no_such_module")
    try:
        processes.start(join_of(config, processes))
        with pytest.raises(EngineDeadError, match=r"rank 1 .* ended with exit code 1; see its"):
            processes.wait_loaded()
    finally:
        processes.close()


def test_what_is_wrong_with_weights_is_told_once(tmp_path: Path) -> None:
    """And no rank stays."""
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, '
        '"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, '
        '"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, '
        '"rms_norm_eps": 1e-6, "hidden_act": "silu", "torch_dtype": "float32"}'
    )
    config = EngineConfig(
        model=str(tmp_path), backend="reference", tensor_parallel=2, load_format="dummy"
    )
    engine_plan = plan_engine(config)
    missing = msgspec.structs.replace(engine_plan.config, load_format="auto")
    with pytest.raises(PenstockError, match=r"weights|safetensors"):
        load(replace(engine_plan, config=missing))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_is_not_done_by_all_is_the_last(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that went on would be at different steps."""
    with LLM(**options(backend, tensor_parallel=2)) as llm:
        executor = llm._core._core._executor  # type: ignore[attr-defined]

        def interrupted(step: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(executor._own, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(llm, [prompt(1, 5, 200)], LONG)
        monkeypatch.undo()
        with pytest.raises(EngineDeadError, match="a step of several ranks was not done: Keyboard"):
            run(llm, [prompt(1, 5, 200)], LONG)
