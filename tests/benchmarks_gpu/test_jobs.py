from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from gpu.jobs import MEASURES, Job, in_process, plan_jobs, run_jobs, select
from gpu.kernels import CONFIGS
from gpu.settings import engine_config
from gpu.workload import Size
from support.waiting import PATIENCE_S, runs, until

from penstock.errors import ConfigError
from penstock.weights.model_folder import load_model_spec


def test_a_selection_is_in_order_and_known() -> None:
    assert select(None) == MEASURES
    assert select("prefill, decode") == ("decode", "prefill")
    with pytest.raises(ConfigError, match=r"--only takes ceilings, .*not 'speed'"):
        select("decode,speed")
    with pytest.raises(ConfigError, match="an empty list"):
        select(",")


def test_all_measures_take_every_job_once() -> None:
    jobs = plan_jobs(MEASURES)
    assert [job.name for job in jobs] == [
        *("ceilings", "compile", "bf16", "int8", "int4", "blocks", "cublas", "experts"),
        *("experts_int4", "latents", "again", "generate", "generate_batch", "checks"),
    ]
    bf16 = jobs[2]
    assert bf16.measures == ("decode", "ops", "prefill", "host", "chunk", "itl", "mixed")
    assert bf16.batches == (1, 64)
    assert jobs[3].engine == {"quantization": "int8"}
    assert jobs[6].engine == {"deterministic": False}
    assert jobs[7].measures == jobs[9].measures == ("decode", "ops", "prefill")
    assert jobs[1].engines == [{}, *(job.engine for job in jobs[3:10] if job.kind == "engine")]


def test_blocks_need_no_engine() -> None:
    assert [job.kind for job in plan_jobs(["blocks"])] == ["ceilings", "blocks"]


def test_experts_are_measured_by_themselves() -> None:
    planned = plan_jobs(["experts"])
    names = [job.name for job in planned]
    assert names == ["ceilings", "compile", "experts", "experts_int4"]
    assert planned[2].batches == (1, 16, 64)
    size = Size()
    config = engine_config(CONFIGS / "llama-3.1-8b", size, **planned[2].engine)
    assert config.model == str(CONFIGS / "moe-5b-a1b")


def test_latents_are_measured_with_a_shape_that_has_them() -> None:
    ceilings, compile_, latents = plan_jobs(["latents"])
    assert (ceilings.name, compile_.name, latents.name) == ("ceilings", "compile", "latents")
    assert latents.batches == (1, 64)
    for name in (latents.engine["model"], "tiny-latents"):
        layer = load_model_spec(CONFIGS / name).layers[0]
        assert layer.attention.latent is not None


@pytest.mark.parametrize(
    ("only", "jobs", "measures", "batches"),
    [
        ("decode", ["ceilings", "compile", "bf16"], ("decode",), (1, 64)),
        ("quantized", ["compile", "bf16", "int8", "int4"], ("decode",), (1,)),
        ("deterministic", ["compile", "bf16", "cublas"], ("decode", "prefill"), (1, 64)),
        ("host", ["compile", "bf16"], ("host",), ()),
        ("chunk", ["compile", "bf16"], ("chunk",), ()),
        ("itl", ["ceilings", "compile", "bf16"], ("itl",), ()),
        ("ready", ["compile", "bf16", "again"], (), ()),
        ("mixed", ["compile", "bf16", "generate", "generate_batch"], ("mixed",), ()),
    ],
)
def test_what_a_figure_needs_is_measured(
    only: str, jobs: list[str], measures: tuple[str, ...], batches: tuple[int, ...]
) -> None:
    planned = plan_jobs(select(only))
    assert [job.name for job in planned] == jobs
    (bf16,) = [job for job in planned if job.name == "bf16"]
    assert (bf16.measures, bf16.batches) == (measures, batches)


def test_a_job_that_fails_takes_no_other_with_it_and_time_ends() -> None:
    now = [0.0]
    given = []

    def launch(job: Job, seconds: float) -> bytes:
        given.append((job.name, seconds))
        now[0] += 40
        if job.name == "bad":
            raise RuntimeError("ended with 1: see /home/someone/model/config.json")
        return job.name.encode()

    said: list[str] = []
    jobs = [Job(name, "engine") for name in ("bad", "good", "late")]
    results, problems = run_jobs(jobs, launch, 60, said.append, lambda: now[0])
    assert results == {"good": b"good"}
    assert given == [("bad", 60), ("good", 20)]
    assert problems == {
        "bad": "ended with 1: see config.json",
        "late": "not run: the 1 minutes were over",
    }
    assert said[-1] == "late: not run: the 1 minutes were over"


def worker(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", f"import sys; {code}", *arguments]


def test_a_worker_hands_back_what_it_wrote(tmp_path: Path) -> None:
    output = tmp_path / "out"
    code = "open(sys.argv[1], 'w').write('{}')"
    assert in_process(worker(code, str(output)), output, 60) == b"{}"


def test_a_worker_that_fails_says_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^ended with 1: ValueError: no such device$"):
        in_process(worker("raise ValueError('no such device')"), tmp_path / "out", 60)
    with pytest.raises(RuntimeError, match="ended with 0: it said nothing"):
        in_process(worker("pass"), tmp_path / "out", 60)


def test_what_a_worker_wrote_before_its_time_was_over_is_kept(tmp_path: Path) -> None:
    output = tmp_path / "out"
    code = "import time; open(sys.argv[1], 'w').write('{}'); time.sleep(600)"
    for limit_s in (0.5, 2, 8, 32):  # until it had the time to start
        with contextlib.suppress(RuntimeError):
            assert in_process(worker(code, str(output)), output, limit_s) == b"{}"
            return
    pytest.fail("it never started")


def test_a_worker_that_takes_too_long_ends_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    child = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"import subprocess; subprocess.run([sys.executable, '-c', {child!r}])"
    for limit_s in (0.5, 2, 8, 32):  # until the child had the time to start
        with pytest.raises(RuntimeError, match="the time was over"):
            in_process(worker(code), tmp_path / "out", limit_s)
        if mark.exists() and mark.read_text():
            break
    until(lambda: not runs(int(mark.read_text())), PATIENCE_S, "the child ends with its parent")
