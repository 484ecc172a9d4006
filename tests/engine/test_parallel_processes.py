"""Processes of ranks and of stages that do not start, die, stop, or are closed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bitwise import prompt, run
from support.cuts import Cut, ranks, stages
from support.needs import needs_native, require_native
from support.waiting import PATIENCE_S, descendants_of, runs, until

from penstock import LLM, AsyncLLM, SamplingParams
from penstock.config import EngineConfig
from penstock.engine.loader import load, plan_engine
from penstock.errors import EngineDeadError, PenstockError

pytestmark = pytest.mark.slow

LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
BACKENDS = [pytest.param("cpu", marks=needs_native), "reference"]
PAIRS = [ranks(2), stages(2)]
BOTH = Cut(ranks=2, stages=2)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def started(before: list[int]) -> list[int]:
    """The processes of an engine of this process, those that others of them started last."""
    return [pid for pid in descendants_of(os.getpid()) if pid not in before]


def all_end(pids: Iterable[int]) -> None:
    for pid in pids:
        until(lambda: not runs(pid), PATIENCE_S, "all processes have ended")  # noqa: B023


def python(code: str) -> str:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=4 * PATIENCE_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout


@pytest.mark.parametrize(
    ("backend", "cut", "victim"),
    [
        ("cpu", ranks(3), 1),
        ("cpu", stages(3), 1),
        ("cpu", BOTH, 2),  # which a stage has started
        slow("cpu", BOTH, 0),
        slow("cpu", BOTH, 1),
        ("reference", ranks(3), 1),
        ("reference", stages(3), 1),
    ],
    ids=str,
)
def test_one_that_is_killed_ends_the_engine_with_its_cause(
    backend: Any, cut: Cut, victim: int
) -> None:
    if backend == "cpu":
        require_native()
    before = descendants_of(os.getpid())
    with LLM(backend=backend, max_num_seqs=4, **cut.options) as llm:
        pids = started(before)
        assert len(pids) == cut.ranks * cut.stages - 1
        run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))
        stream = llm.stream([{"prompt_token_ids": prompt(1, 5, 200)}], LONG)
        next(stream)
        os.kill(pids[victim], signal.SIGKILL)
        message = rf"\(pid {pids[victim]}\) was ended by SIGKILL; if nobody killed it, memory"
        with pytest.raises(EngineDeadError, match=message):
            for _ in stream:
                pass
        with pytest.raises(EngineDeadError, match=message):  # and so does all that follows
            run(llm, [prompt(2, 5, 200)], SamplingParams(max_tokens=2))
    all_end(pids)


@needs_native
def test_a_rank_that_dies_while_others_wait_for_it() -> None:
    """One that is stopped keeps the others waiting in the middle of a step."""
    before = descendants_of(os.getpid())
    with LLM(backend="cpu", **ranks(3).options) as llm:
        pid = started(before)[0]
        os.kill(pid, signal.SIGSTOP)
        stopped = subprocess.Popen(["sh", "-c", f"sleep 1; kill -KILL {pid}"], process_group=0)
        with pytest.raises(EngineDeadError, match=rf"of rank 1 \(pid {pid}\)"):
            run(llm, [prompt(1, 5, 200)], LONG)
        stopped.wait()


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("cut", PAIRS, ids=str)
def test_closing_ends_those_that_are_stopped(cut: Cut) -> None:
    before = descendants_of(os.getpid())
    llm = LLM(backend="cpu", **cut.options)
    pids = started(before)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    llm.close()
    all_end(pids)


@needs_native
@pytest.mark.parametrize("cut", [*PAIRS, slow(BOTH)], ids=str)
@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "pass", "del llm"])
def test_none_outlives_its_parent(cut: Cut, ending: str) -> None:
    code = f"""
    import os, signal
    from penstock import LLM
    from support.waiting import descendants_of
    llm = LLM(backend="cpu", **{cut.options})
    print(*descendants_of(os.getpid()), flush=True)
    {ending}
    """
    pids = list(map(int, python(code).split()))
    assert pids
    all_end(pids)


@needs_native
@pytest.mark.parametrize("cut", PAIRS, ids=str)
def test_a_fork_leaves_them_alone(cut: Cut) -> None:
    code = f"""
    import os
    from penstock import LLM, SamplingParams
    llm = LLM(backend="cpu", **{cut.options})
    if os.fork() == 0:
        raise SystemExit(0)  # and closes what it has at its end
    assert os.wait()[1] == 0
    (output,) = llm.generate(["def f(x):"], SamplingParams(max_tokens=3, temperature=0))
    print(output.outputs[0].finish_reason)
    """
    assert python(code).strip() == "length"


@needs_native
@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("cut", [*PAIRS, slow(BOTH)], ids=str)
def test_an_engine_in_its_own_process_reports_it(cut: Cut, busy: bool) -> None:
    async def main() -> None:
        llm = await AsyncLLM.start(EngineConfig(backend="cpu", **cut.options))
        try:
            *_, pid = descendants_of(llm.process.pid)
            os.kill(pid, signal.SIGKILL)
            if busy:
                with pytest.raises(EngineDeadError, match=rf"\(pid {pid}\)"):
                    async for _ in llm.generate("def f(x):", LONG):
                        pass
            await asyncio.wait_for(llm.wait_dead(), PATIENCE_S)
            assert isinstance(llm.death, EngineDeadError)
            assert f"(pid {pid}) was ended by SIGKILL" in str(llm.death)
        finally:
            await llm.aclose()

    asyncio.run(asyncio.wait_for(main(), 4 * PATIENCE_S))


@pytest.mark.parametrize("cut", PAIRS, ids=str)
def test_what_is_wrong_with_weights_is_told_once(cut: Cut, tmp_path: Path) -> None:
    """And no process stays."""
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, '
        '"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, '
        '"rms_norm_eps": 1e-6, "hidden_act": "silu", "torch_dtype": "float32"}'
    )
    before = descendants_of(os.getpid())
    config = EngineConfig(
        model=str(tmp_path), backend="reference", load_format="dummy", **cut.options
    )
    engine_plan = plan_engine(config)
    missing = msgspec.structs.replace(engine_plan.config, load_format="auto")
    with pytest.raises(PenstockError, match=r"weights|safetensors"):
        load(replace(engine_plan, config=missing))
    all_end(started(before))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cut", PAIRS, ids=str)
def test_a_step_that_is_not_done_by_all_is_the_last(
    cut: Cut, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that went on would be at different steps."""
    with LLM(backend=backend, max_num_seqs=4, **cut.options) as llm:
        executor = llm._core._core._executor  # type: ignore[attr-defined]

        def interrupted(step: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(executor._own, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(llm, [prompt(1, 5, 200)], LONG)
        monkeypatch.undo()
        message = r"a step of several (ranks|stages) was not done: Keyboard"
        with pytest.raises(EngineDeadError, match=message):
            run(llm, [prompt(1, 5, 200)], LONG)
