"""Ctrl-C while a benchmark runs: what was done until then is printed, and written, with all that
every benchmark writes."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.bench import session as session_module
from penstock.bench.machine import Speeds
from penstock.cli import main as cli
from penstock.cli.bench_progress import BenchProgress


class Pressed(BenchProgress):
    """Ctrl-C is pressed when the run begins whose name holds ``at``, after ``after`` steps."""

    at, after = "", 0

    def begin(self, run: str, total: int, unit: str = "tokens") -> None:
        self._steps = self.after if self.at in run else -1
        super().begin(run, total, unit)

    def advance(self, count: int) -> None:
        if self._steps == 0:
            os.kill(os.getpid(), signal.SIGINT)
        self._steps -= 1
        super().advance(count)


@pytest.fixture
def press(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    monkeypatch.setattr(session_module, "measure_speeds", lambda threads: Speeds(unmeasured="-"))
    for name in ("latency", "throughput", "spec", "replay_azure", "replay_mooncake"):
        monkeypatch.setattr(f"penstock.cli.bench_{name}.BenchProgress", Pressed)

    def press(at: str, after: int) -> None:
        monkeypatch.setattr(Pressed, "at", at)
        monkeypatch.setattr(Pressed, "after", after)

    return press


def bench(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "out.json"
    code = cli.main(["bench", *words, "--json", str(out)])
    if not out.exists():
        return code, {}
    document = json.loads(out.read_text())
    name = "replay " + words[1] if words[0] == "replay" else words[0]
    assert document["benchmark"] == name
    assert document["command"].startswith("penstock")
    assert document["workload"]
    assert document["machine"]["packages"]["penstock"]
    for part in ("model", "engine", "weight_bytes_per_step"):
        assert (part in document) == (name != "replay mooncake"), part
    return code, document


def engine(model: Path) -> list[str]:
    return [str(model), "--load-format", "dummy", "--backend", "reference", "--kv-cache-bytes=1MiB"]


def test_latency(
    press: Callable[[str, int], None],
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["latency", *engine(tiny_model), "--input-len", "8", "--output-len", "4"]
    press("run 3 of 5", 2)
    code, document = bench(tmp_path, *words)
    assert (code, document["partial"], len(document["runs"])) == (130, True, 2)
    assert "2 of 5 runs were done; the figures are of these" in capsys.readouterr().out
    press("warm-up", 0)
    (tmp_path / "out.json").unlink()
    assert bench(tmp_path, *words) == (130, {})
    press("never", 0)
    code, document = bench(tmp_path, *words)
    assert (code, document["partial"], len(document["runs"])) == (0, False, 5)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_throughput(
    press: Callable[[str, int], None],
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["throughput", *engine(tiny_model), "--num-prompts", "6", "--input-len", "4"]
    words += ["--output-len", "3", "--max-num-seqs", "2"]
    press("6 requests", 4)
    code, document = bench(tmp_path, *words)
    assert (code, document["partial"], document["workload"]["num_prompts"]) == (130, True, 6)
    assert 0 < document["requests"] < 6
    # Two more run when Ctrl-C comes, and have first tokens; theirs would be latencies of nothing.
    for name in ("ttft_s", "tpot_s", "request_latency_s"):
        assert document[name]["count"] == document["requests"], name
    assert document["itl_s"]["count"] == 2 * document["requests"]
    assert 3 * document["requests"] <= document["output_tokens"] < 18
    assert f"{document['requests']} of 6 requests were done" in capsys.readouterr().out


def test_spec(press: Callable[[str, int], None], tmp_path: Path) -> None:
    words = ["spec", "--threads", "1", "--max-model-len", "64", "-p", "def f(x):"]
    words += ["--output-len", "4", "--method", "ngram", "--scripted", "0.5,0.1,2"]
    press("scripted:alpha=0.5,cost=0.1,num_tokens=2, run 2 of 3, with", 1)
    code, document = bench(tmp_path, *words)
    assert (code, document["partial"]) == (130, True)
    assert [result["repeats"] for result in document["results"]] == [3, 1]


def test_azure(
    press: Callable[[str, int], None], tiny_model: Path, tmp_path: Path, capsys: Any
) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "0,20,3\n" * 4)
    words = ["replay", "azure", *engine(tiny_model), "--trace", str(trace)]
    press("run 3 of 3, unpadded", 1)
    code, document = bench(tmp_path, *words)
    assert (code, document["partial"]) == (130, True)
    assert "static" in document
    assert "static_unpadded" not in document
    assert "2 of 3 runs were done" in capsys.readouterr().out


def test_mooncake(press: Callable[[str, int], None], tmp_path: Path) -> None:
    trace = tmp_path / "mooncake.jsonl"
    line = {"timestamp": 0, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2]}
    trace.write_text("".join(json.dumps(line) + "\n" for _ in range(4)))
    words = ["replay", "mooncake", "--trace", str(trace), "--blocks", "64", "--blocks", "128"]
    press("128 blocks", 1)
    code, document = bench(tmp_path, *words)
    assert (code, document["partial"], len(document["curve"])) == (130, True, 1)


class Shown(io.StringIO):
    """A terminal of 40 columns."""

    def isatty(self) -> bool:
        return True


def test_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.status_line.columns", lambda stream: 40)
    monkeypatch.setattr("penstock.cli.status_line._FIRST_S", 0.0)
    monkeypatch.setattr("penstock.cli.status_line._REDRAW_S", 0.0)
    stream = Shown()
    with BenchProgress(stream) as progress:
        progress.load("weights", 0.5, 2_000_000)
        progress.begin("run 1 of 2", 40)
        progress.advance(10)
    lines = [line.strip() for line in stream.getvalue().split("\r") if line.strip()]
    assert lines[0] == "loading: weights [##########..........]"
    assert lines[1] == "run 1 of 2 [....................] 0 %"
    assert lines[2].startswith("run 1 of 2 [#####...............] 25 %,")
    assert max(map(len, lines)) < 40
