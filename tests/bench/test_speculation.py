from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.bench import session
from penstock.bench.machine import Speeds
from penstock.bench.speculation import Scripted, formula, run_speculation
from penstock.cli.main import main
from penstock.config import EngineConfig
from penstock.sampling.params import SamplingParams
from penstock.speculative_config import Ngram


@pytest.fixture(autouse=True)
def unmeasured_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring takes seconds."""
    monkeypatch.setattr(session, "measure_speeds", lambda threads: Speeds(unmeasured="a test"))


def test_the_formula() -> None:
    assert formula(0.7, 4) == pytest.approx(2.7731)
    assert formula(0.0, 4) == 1.0
    assert formula(1.0, 4) == 5.0


def test_figures_agree_with_each_other() -> None:
    config = EngineConfig(backend="cpu", threads=1, artifact=False, max_model_len=128)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    found = run_speculation(
        config, [Ngram(min_match=1, adaptive=False)], [[5] * 20, "import os\n"], params, 2, 1
    )
    (result,) = found.results
    assert found.machine.threads == 1
    assert result.same
    # One repeat: all of them are the same run.
    assert result.speedup_range == (result.speedup, result.speedup)
    assert result.tokens_per_s / result.plain_tokens_per_s == pytest.approx(result.speedup)
    assert 0 < result.steps_with_drafts <= result.steps < 2 * 24
    assert 0 < result.accepted_per_draft <= result.tokens_per_draft <= 8
    assert sum(result.accepted_by_position) == pytest.approx(result.accepted_per_draft)
    assert result.depth == result.tokens_per_draft
    assert result.formula_tokens_per_step == pytest.approx(formula(result.acceptance, result.depth))
    assert result.formula_speedup < result.formula_tokens_per_step
    assert 0 < result.draft_share < 1


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    command = "bench spec --backend cpu --threads 1 --no-artifact --max-model-len 128 --repeats 1"
    options = ["--output-len", "12", "-p", "def f(a):\n", "--json", str(path)]
    assert main([*command.split(), *options, "--method", "draft:num_tokens=2"]) == 0
    document = json.loads(path.read_text())
    assert document["command"].startswith("penstock")
    assert document["workload"]["methods"] == ["draft:num_tokens=2,adaptive=true"]
    assert document["workload"]["output_len"] == 12
    assert document["engine"]["speculative"] is None
    (result,) = document["results"]
    assert result["method"] == "draft:num_tokens=2,adaptive=true"
    printed = capsys.readouterr().out
    assert "the same" in printed
    assert "% each; of all drafts as far as each position " in printed


def test_a_scripted_draft_is_accepted_as_often_as_it_says() -> None:
    config = EngineConfig(backend="cpu", threads=1, artifact=False, max_model_len=128)
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    scripted = Scripted(0.8, 0.0, 4)
    prompts = [[i, 9] for i in range(8)]
    (result,) = run_speculation(config, [scripted], prompts, params, 8, 1).results
    assert result.same
    assert result.acceptance == pytest.approx(0.8, abs=0.07)
    assert 1 + result.accepted_per_draft == pytest.approx(formula(0.8, 4), rel=0.1)
    assert result.formula_speedup == pytest.approx(formula(0.8, 4))


def test_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.svg"
    command = "bench spec --backend cpu --threads 1 --no-artifact --max-model-len 128 --repeats 1"
    options = ["--output-len", "8", "-p", "a a a a a", "--method", "ngram", "--scripted", "0.5,0,2"]
    assert main([*command.split(), *options, "--plot", str(path)]) == 0
    drawn = path.read_text()
    for text in ("1. ngram", "2. scripted", "1 thread", "times the tokens/s of plain decoding"):
        assert text in drawn, text


def test_a_plot_of_another_kind_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "spec", "-p", "a", "--plot", "spec.gif"]) == 2
    assert ".svg, .png or .pdf" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0.8", "0.8,0.1,x", "1.5,0.1,4", "0.8,-1,4", "0.8,0.1,17"])
def test_scripts_that_cannot_be(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "spec", "--scripted", text, "-p", "a"]) == 2
    assert "--scripted" in capsys.readouterr().err
