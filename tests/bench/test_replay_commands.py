"""``penstock bench replay`` over small traces of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.bench import session as session_module
from penstock.bench.machine import Speeds
from penstock.cli import main as cli


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    rows = [f"{i},{20 + i},{2 + 12 * (i % 4 == 0)}" for i in range(16)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return path


def test_azure_in_flight_takes_fewer_steps_than_static(
    tiny_model: Path,
    azure: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(session_module, "measure_speeds", lambda threads: Speeds(unmeasured="-"))
    out = tmp_path / "out.json"
    words = ["bench", "replay", "azure", str(tiny_model), "--load-format", "dummy"]
    words += ["--backend", "reference", "--kv-cache-bytes", "1MiB", "--max-num-seqs", "4"]
    words += ["--trace", str(azure), "--requests", "12", "--json", str(out)]
    assert cli.main(words) == 0
    assert "in flight" in capsys.readouterr().out
    document = json.loads(out.read_text())
    assert document["requests"] == document["static"]["requests"] == 12
    tokens = sum(2 + 12 * (i % 4 == 0) for i in range(12))
    assert document["output_tokens"] == document["static"]["output_tokens"] == tokens
    # One long request in each static batch holds up three short ones.
    unpadded = document["static_unpadded"]
    assert document["step_s"]["count"] < unpadded["step_s"]["count"]
    assert document["mean_sequences_per_step"] > unpadded["mean_sequences_per_step"]
    # In a rectangle they run on with it, for nobody.
    assert document["static"]["mean_sequences_per_step"] > unpadded["mean_sequences_per_step"]
    for name in ("static", "static_unpadded"):
        assert document[f"in_flight_over_{name}"] == pytest.approx(
            document["output_tokens_per_s"] / document[name]["output_tokens_per_s"]
        )
    assert 0 < document["kv_waste"] < 1


def test_azure_shrinks_to_fit_unless_told_how(
    tiny_model: Path, azure: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "replay", "azure", str(tiny_model), "--load-format", "dummy"]
    words += ["--backend", "reference", "--max-model-len", "32", "--trace", str(azure)]
    assert cli.main([*words, "--scale", "1.0"]) == cli.EXIT_USAGE
    assert "exceed the engine's 32 tokens" in capsys.readouterr().err


def test_mooncake_finds_more_in_a_larger_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    lines = [
        {"timestamp": 0, "input_length": 2048, "output_length": 64, "hash_ids": [i, 50, 51, i + 9]}
        for i in [0, 1, 2, 3, 0, 1, 2, 3]
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    words = ["bench", "replay", "mooncake", "--trace", str(trace), "--max-num-seqs", "1"]
    words += ["--blocks", "10", "--blocks", "100", "--json", str(out)]
    assert cli.main(words) == 0
    assert "of all" in capsys.readouterr().out
    small, large = json.loads(out.read_text())["curve"]
    assert small["hit_tokens"] < large["hit_tokens"]
    assert large["share_of_infinite"] == 1.0
