"""Traces: lengths of requests, and the prefixes that they share."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bench.replay import ReplayLimits, replay_prefixes
from penstock.bench.traces import Lengths, read_lengths, read_mooncake
from penstock.errors import ConfigError

COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(f"{COLUMNS}\n0,374,44\n1,10,0\n2,396,109\n3,1,1\n")
    return path


def test_azure_lengths(azure: Path) -> None:
    assert read_lengths(azure) == [Lengths(374, 44), Lengths(396, 109), Lengths(1, 1)]
    assert read_lengths(azure, limit=2) == [Lengths(374, 44), Lengths(396, 109)]
    assert read_lengths(azure, scale=0.1)[::2] == [Lengths(37, 4), Lengths(1, 1)]


def test_burstgpt_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,472,18\n9,GPT-4,3,0\n")
    assert read_lengths(path) == [Lengths(472, 18)]


def test_mooncake_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 500, "hash_ids": [0, 2]}\n\n'
        '{"timestamp": 3, "input_length": 5, "output_length": 2, "hash_ids": [1]}\n'
    )
    assert read_lengths(path) == [Lengths(600, 500), Lengths(5, 2)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n", "has the columns x, y"),
        ("b.csv", f"{COLUMNS}\n0,1,1\n0,1,two\n", "line 3 is no request"),
        ("b.csv", f"{COLUMNS}\n0,1,1\n0,1,\udcff\n", "is no .csv of a trace"),
        ("c.jsonl", '{"prompt": "x"}\n', "line 1 is not of Mooncake's form"),
        ("d.jsonl", "nonsense\n", "line 1 is not of Mooncake's form"),
        ("d.jsonl", '{"input_length": 3, "output_length": 0}\n', "no request"),
        ("e.csv", f"{COLUMNS}\n0,5,0\n", "no request"),
    ],
)
def test_files_that_are_no_traces(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        read_lengths(path)


def test_what_has_no_hash_ids_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="trace, line 1"):
        read_mooncake(path)
    path.write_text('{"input_length": 600, "output_length": 1, "hash_ids": [1]}\n')
    with pytest.raises(ConfigError, match="600 tokens have 1 hash ids"):
        read_mooncake(path)
    path.write_text("\n")
    with pytest.raises(ConfigError, match="holds no request"):
        read_mooncake(path)


def test_blocks_of_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{"input_length": 70, "output_length": 3, "hash_ids": [1, 2, 3], "block_size": 32}\n'
    path.write_text(line * 2)
    trace = read_mooncake(path)
    assert [each.block for each in trace] == [32, 32]
    report = replay_prefixes(trace, ReplayLimits(16, max_num_seqs=1))
    assert (report.prompt_tokens, report.hit_tokens, report.infinite_hit_tokens) == (140, 64, 64)
    path.write_text(line + '{"input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n')
    with pytest.raises(ConfigError, match="line 2 has blocks of 512 tokens, and lines before"):
        read_mooncake(path)
