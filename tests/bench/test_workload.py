"""Workloads: lengths from traces, random prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bench.stats import summarize
from penstock.bench.workload import Lengths, check_fit, fixed_lengths, random_requests, read_lengths
from penstock.errors import ConfigError


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\na,374,44\nb,10,0\nc,396,109\nd,1,1\n")
    return path


def test_azure_lengths(azure: Path) -> None:
    assert read_lengths(azure) == [Lengths(374, 44), Lengths(396, 109), Lengths(1, 1)]
    assert read_lengths(azure, limit=2) == [Lengths(374, 44), Lengths(396, 109)]
    assert read_lengths(azure, scale=0.1)[::2] == [Lengths(37, 4), Lengths(1, 1)]


def test_mooncake_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0]}\n\n'
        '{"timestamp": 3, "input_length": 5, "output_length": 2, "hash_ids": [1]}\n'
    )
    assert read_lengths(path) == [Lengths(6758, 500), Lengths(5, 2)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n", "columns ContextTokens"),
        ("b.csv", "ContextTokens,GeneratedTokens\n1,two\n", "not a request trace"),
        ("c.jsonl", '{"prompt": "x"}\n', "fields input_length"),
        ("d.jsonl", "nonsense\n", "not a request trace"),
        ("e.csv", "ContextTokens,GeneratedTokens\n5,0\n", "no request"),
    ],
)
def test_files_that_are_no_traces(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_lengths(path)


def test_requests_have_the_lengths_and_differ() -> None:
    requests = random_requests(fixed_lengths(3, 20, 7), vocab_size=50, seed=3)
    prompts = [tuple(request.prompt_token_ids) for request in requests]
    assert len(set(prompts)) == 3
    assert all(len(prompt) == 20 and 0 <= min(prompt) <= max(prompt) < 50 for prompt in prompts)
    assert all(r.params.max_tokens == 7 and r.params.ignore_eos for r in requests)
    again = random_requests(fixed_lengths(3, 20, 7), vocab_size=50, seed=3)
    assert [tuple(request.prompt_token_ids) for request in again] == prompts


def test_what_does_not_fit_is_refused() -> None:
    check_fit([Lengths(100, 28)], 128)
    with pytest.raises(ConfigError, match=r"1 of 2 requests exceed .* 128 tokens.* 100 \+ 29"):
        check_fit([Lengths(100, 29), Lengths(1, 1)], 128)


def test_summaries() -> None:
    summary = summarize([4.0, 1.0, 2.0, 3.0])
    assert summary is not None
    assert (summary.count, summary.mean, summary.p50, summary.max) == (4, 2.5, 2.5, 4.0)
    assert summary.p90 == pytest.approx(3.7)
    assert summarize([]) is None
