"""``penstock size``: what it prints, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli import main as cli

CONFIG = str(Path(__file__).parents[2] / "benchmarks/configs/llama-3.1-8b/config.json")
ARGV = ["size", CONFIG, "--gpu", "H100", "--isl", "2k", "--osl", "300", "--concurrency", "64"]


def test_one_screen_says_what_fits_what_binds_and_what_it_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([*ARGV, "--slo", "ttft:500ms", "tpot:0.03s"]) == 0
    out = capsys.readouterr().out
    for text in (
        "GQA, 8 KV heads of 128 for 32 heads, 128.0 KiB a token",
        *("14.96 GiB as they are (bfloat16)", "objectives: TTFT 500ms, TPOT 30.0ms"),
        *("cheapest", "fastest", "memory", "prompts compute", "next ", "prices "),
    ):
        assert text in out
    assert len(out.splitlines()) < 25


def test_json_has_every_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "size.json"
    assert cli.main([*ARGV, "--tp", "1,2", "--quantization", "none", "--json", str(path)]) == 0
    made = json.loads(path.read_text())
    assert [each["tensor"] for each in made["configurations"]] == [1, 2]
    assert made["load"]["isl"] == 2000
    assert cli.main([*ARGV, "--tp", "1,2", "--quantization", "none", "--json", "-"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed[printed.index("{\n") :]) == made


def test_the_nearest_is_named_where_nothing_meets(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["size", CONFIG, "--gpu", "L4", "--tp", "1", "--slo", "tpot:10ms"]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "nothing meets the objectives; the nearest is" in out
    assert "instead of 10.0ms" in out
    assert "of the whole catalogue" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "H110"], "no accelerator 'H110' in the catalogue; the nearest are H100"),
        (["--slo", "ttft:500"], "not a duration: '500' (write 500ms"),
        (["--slo", "p99:1s"], "not an objective: 'p99:1s'"),
        (["--slo", "tpot:0ms"], "not a duration"),
        (["--slo", "tpot:1s", "--slo", "tpot:2s"], "--slo names tpot twice"),
        (["--isl", "0"], "not a number of tokens"),
        (["--isl", "2.5kk"], "not a number of tokens"),
        (["--isl", "500k"], "longer than the model's context of 131,072"),
        (["--concurrency", "-3"], "not a positive integer"),
        (["--tp", "3"], "3 ranks cannot share 32 attention heads"),
        (["--tp", "16"], "at most 8 that are linked"),
        (["--quantization", "int3"], "'int3' is none of none, int8, int4"),
        (["--speculate", "tokens=0,accept=0.5"], "not drafts"),
        (["--speculate", "tokens=4,accept=7"], "between 0 and 1"),
        (["--catalogue", "/no/such"], "cannot be read"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*ARGV, *words]) == cli.EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
