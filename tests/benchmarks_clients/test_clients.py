from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from client import ClientError, Figures, Job
from environments import Environment, SetupError
from fresh_server import Served
from lm_eval_run import LIKELIHOOD, TASKS, compared
from load import side_by_side

from penstock import LLM, SamplingParams

METRICS = {
    "request_success_total": 10.0,
    "generation_tokens_total": 100.0,
    "time_to_first_token_seconds_sum": 1.0,
    "time_to_first_token_seconds_count": 10.0,
    "inter_token_latency_seconds_sum": 1.0,
    "inter_token_latency_seconds_count": 90.0,
    "e2e_request_latency_seconds_sum": 3.0,
    "e2e_request_latency_seconds_count": 10.0,
}


class Counted(Served):
    """A server whose every scrape tells one more request of 8 tokens and 100 ms."""

    def metrics(self) -> dict[str, float]:
        at = dict(METRICS)
        METRICS["request_success_total"] += 1
        METRICS["generation_tokens_total"] += 8
        METRICS["e2e_request_latency_seconds_sum"] += 0.1
        METRICS["e2e_request_latency_seconds_count"] += 1
        return at


@pytest.fixture
def job(tmp_path: Path) -> Job:
    programs = tmp_path / "env" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    folder = tmp_path / "out"
    folder.mkdir()
    environment = Environment(tmp_path / "env")
    server = Counted("http://127.0.0.1:1234")
    return Job(environment, server, "model", tmp_path / "tokenizer", folder, True, 30)


def test_a_command_is_reported_without_paths_of_the_machine(job: Job) -> None:
    code = f"print('{job.folder} {job.server.url}')"
    assert job.call("python", "-c", code) == f"{job.folder} {job.server.url}\n"
    assert job.commands == ["python -c print('OUT URL')"]


def test_a_command_that_fails_is_reported_by_its_last_line(job: Job) -> None:
    code = f"print('first'); exit('no file in {job.folder}')"
    with pytest.raises(ClientError, match="python ended with 1: no file in OUT"):
        job.call("python", "-c", code)
    assert job.call("python", "-c", code, may_fail=True).startswith("first\n")


@pytest.mark.slow
def test_what_cannot_be_installed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(SetupError, match="-m pip install ended with"):
        Environment.create(tmp_path, ["--no-such-option"], tmp_path / "log")
    assert not (tmp_path / "requirements.json").exists()


@pytest.mark.parametrize(
    ("changed", "agrees"),
    [
        ({}, True),
        ({"requests": 2}, False),
        ({"output tokens": 7}, False),
        ({"e2e ms": 90.0}, False),
    ],
)
def test_both_sides_are_compared(job: Job, changed: Figures, agrees: bool) -> None:
    seen: Figures = {"requests": 1, "output tokens": 8, "TTFT ms": 5, "ITL ms": 5, "e2e ms": 101.0}
    outcome = side_by_side(job, lambda *_: {**seen, **changed})
    assert outcome.agrees == agrees
    assert [row["streams"] for row in outcome.rows] == [1, 4]
    assert [row["our output tokens"] for row in outcome.rows] == [8, 8]
    assert outcome.rows[0]["our e2e ms"] == pytest.approx(100)


def test_every_choice_of_the_tasks_is_distinguished() -> None:
    rows = [json.loads(x) for x in (TASKS / "continue.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) >= 10
    for row in rows:
        assert len(set(row["choices"])) == len(row["choices"]) > row["answer"]


def test_a_wrong_likelihood_is_found(job: Job) -> None:
    """What lm-eval writes for a sample, once as computed and once with a bit changed."""
    context, continuation = "def add(a, b):\n    return ", "a + b"
    with LLM(backend="reference", max_model_len=64) as llm:
        tokens = llm.tokenizer.encode(context.rstrip() + " " + continuation, False)
        start = len(llm.tokenizer.encode(context.rstrip(), False))
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        (output,) = llm.generate({"prompt_token_ids": tokens}, params)
        assert output.prompt_logprobs is not None
        total, greedy = 0.0, True
        for token, at in zip(tokens[start:], output.prompt_logprobs[start:], strict=True):
            assert at is not None
            total += at[token].logprob
            greedy &= at[token].rank == 1
        for value, equal in ((total, 1), (total * (1 + 1e-15), 0)):
            sample = {
                "arguments": {"gen_args_0": {"arg_0": context, "arg_1": continuation}},
                "resps": [[[str(value), str(greedy)]]],
            }
            folder = job.folder / str(equal)
            folder.mkdir()
            (folder / f"samples_{LIKELIHOOD}_x.jsonl").write_text(json.dumps(sample))
            assert compared(llm, folder, LIKELIHOOD) == (1, equal)
