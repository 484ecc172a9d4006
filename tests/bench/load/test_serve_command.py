"""``penstock bench serve``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.mock_api import HEAD, Body, MockApi, api_thread, end, said, usual
from support.stepped_http import Step, plain

from penstock.bench.load.document import LoadReport
from penstock.bench.load.energy import EnergyMeter
from penstock.bench.load.search import RateSearch
from penstock.cli import main as cli
from penstock.cli.bench_serve_progress import LiveTable


def bench(api: MockApi, tmp_path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "out.json"
    with api_thread(api):
        code = cli.main(["bench", "serve", api.url, *words, "--json", str(out), "--scrape", "0"])
    if not out.exists():
        return code, {}
    msgspec.json.decode(out.read_bytes(), type=LoadReport)  # readers may rely on its types
    document: dict[str, Any] = json.loads(out.read_text())
    return code, document


def test_a_sweep_with_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "out.csv"
    words = ["--concurrency", "1,3", "--num-prompts", "4", "--input-len", "5", "--repeats", "2"]
    words += ["--output-len", "2..4", "--slo", "ttft:60s", "--csv", str(table), "--warmup", "1"]
    api = MockApi()
    code, document = bench(api, tmp_path, *words)
    assert code == 0
    assert (document["version"], document["benchmark"], document["partial"]) == (1, "serve", False)
    assert [(run["concurrency"], run["repeat"]) for run in document["runs"]] == [
        (1, 0),
        (3, 0),
        (1, 1),
        (3, 1),
    ]
    assert [point["runs"] for point in document["points"]] == [[0, 2], [1, 3]]
    assert document["points"][0]["figures"]["ttft.p99"]["runs"] == 2
    assert all(run["whole"]["good_share"] == 1 for run in document["runs"])
    lengths = [[r["output_tokens"] for r in run["requests"]] for run in document["runs"]]
    assert lengths[0] == lengths[1] == lengths[2]
    # No text is asked for twice: that would be found in a server's cache.
    texts = [body["messages"][0]["content"] for body in api.asked if body["max_tokens"] != 4]
    assert len(set(texts)) == len(texts)
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 16
    assert {row["error"] for row in rows} == {""}
    printed = capsys.readouterr().out
    assert "requests/s" in printed
    assert "closed-loop, 3 at once" in printed


@pytest.mark.parametrize("joined", [False, True])
def test_a_result_has_no_keys(
    tmp_path: Path, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers are sent, and reports show the command without what is in them."""
    header = "x-key: hidden, and more"
    words = [f"--header={header}"] if joined else ["--header", header]
    words += ["--num-prompts", "1", "--input-len", "5", "--output-len", "1"]
    monkeypatch.setattr("sys.argv", ["penstock", "bench", "serve", "http://host", *words])
    code, document = bench(MockApi(), tmp_path, *words)
    assert code == 0
    assert "x-key: ..." in document["command"]
    assert "--num-prompts 1" in document["command"]
    assert "hidden" not in json.dumps(document)


def test_a_seed_repeats_texts(tmp_path: Path) -> None:
    words = ["--num-prompts", "3", "--input-len", "5", "--output-len", "1", "--concurrency", "1"]
    asked = []
    for seed in (["--seed", "1"], ["--seed", "1"], ["--seed", "2"], []):
        api = MockApi()
        bench(api, tmp_path, *words, *seed)
        asked.append([body["messages"][0]["content"] for body in api.asked][-3:])
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]
    assert asked[0] != asked[3]


def test_a_load_without_any_answer_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(body: Body) -> Sequence[Step]:
        if "failing" not in body["messages"][0]["content"]:  # what is sent to look at the server
            return usual(body)
        return [plain("500 Internal Server Error", b'{"error": {"message": "boom"}}')]

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "failing"}\n' * 3)
    words = ["--workload", str(prompts), "--concurrency", "1", "--output-len", "2"]
    code, document = bench(MockApi(answer), tmp_path, *words)
    assert code == cli.EXIT_FAILED
    assert document["runs"][0]["whole"]["errors"] == {"http 500": 3}
    err = capsys.readouterr().err
    assert "none of the requests was answered (3 x http 500: status 500: boom)" in err


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(body: Body) -> Sequence[Step]:
        if len(api.asked) < 6:
            return usual(body)
        if len(api.asked) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return [HEAD, said("x"), 60.0]

    api = MockApi(answer)
    words = ["--concurrency", "1", "--num-prompts", "9", "--input-len", "5", "--output-len", "2"]
    code, document = bench(api, tmp_path, *words, "--repeats", "2")
    assert code == cli.EXIT_INTERRUPTED
    assert document["partial"]
    (run,) = document["runs"]
    assert run["whole"]["stopped"] == 1
    assert run["whole"]["completed"] >= 3
    assert "interrupted" in capsys.readouterr().out


def test_the_highest_rate_is_found(tmp_path: Path) -> None:
    """No answer is within the limit, so the search ends without a rate."""
    words = ["--find-rate", "--rate", "2000", "--num-prompts", "2", "--input-len", "5"]
    words += ["--output-len", "1"]
    slow = MockApi(lambda body: [HEAD, 0.002, said("x"), end(1, 1)])
    code, document = bench(slow, tmp_path, *words, "--slo", "ttft:1us")
    assert code == 0
    assert document["search"]["highest_good"] is None
    assert document["search"]["lowest_bad"] == 2000 / 64


def test_searches() -> None:
    for limit in (0.3, 1.0, 7.7, 100.0):
        search = RateSearch(1.0, most_runs=40)
        while (rate := search.next) is not None:
            search.tell(rate, rate <= limit)
        assert search.good is not None
        assert search.bad is not None
        assert search.good <= limit < search.bad <= search.good * 1.05
    never = RateSearch(1.0, most_runs=5)
    while (rate := never.next) is not None:
        never.tell(rate, True)
    assert never.found(0.9).lowest_bad is None
    assert never.good == 16


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slo", "fast"], "--slo fast"),
        (["--find-rate"], "needs a --slo"),
        (["--arrivals", "poisson"], "needs a --rate"),
        (["--arrivals", "recorded"], "those of a trace"),
        (["--rate", "1", "--arrivals", "at-once"], "leave --rate out"),
        (["--rate", "1,2", "--concurrency", "3,4"], "several of one"),
        (["--rate", "0"], "not above 0"),
        (["--rate", "nan"], "not a number"),
        (["--seed", "-1"], "not a whole number from 0: '-1'"),
        (["--input-len", "x"], "is no length"),
        (["--turns", "3"], "the workload 'random' has none"),
        (["--workload", "patterns", "--input-len", "5"], "a short and a long one"),
        (["--workload", "nothing"], "is none of random, prefix"),
        (["--workload", "nothing.csv"], "nothing.csv"),
        (["--body", "[]"], "no JSON object"),
        (["--body", '{"n": 2}'], "one answer to each request is measured"),
        (["--body", '{"stream": false}'], "answers are measured as they come"),
        (["--input-len", "9" * 20], "is no length"),
        (["--rate", "1", "--arrivals", "gamma:1e-200"], "gamma:CV"),
        (["--rate", "1", "--arrivals", "gamma:1e200"], "gamma:CV"),
        (["--header", "x"], "NAME: VALUE"),
        (["--api-key-env", "NO_SUCH"], "no environment variable NO_SUCH"),
        (["--good-share", "0.5"], "for --find-rate"),
        (["--ratee", "0.5"], "did you mean --rate"),
        (["--json", "/nowhere/run.json"], "there is no folder"),
        (["--csv", "/nowhere/run.csv"], "there is no folder"),
        (["--html", "/nowhere/run.html"], "there is no folder"),
    ],
)
def test_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it before anything is sent."""
    assert cli.main(["bench", "serve", "http://127.0.0.1:9", *words]) != 0
    assert message in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "serve", "http://127.0.0.1:9"]) == cli.EXIT_FAILED
    assert "cannot be reached" in capsys.readouterr().err


def test_energy(tmp_path: Path) -> None:
    for name in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text("900")
        (tmp_path / name / "max_energy_range_uj").write_text("1000")
    meter = EnergyMeter(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("2000900")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("100")  # it has begun anew
    assert meter.joules() == pytest.approx(2.0002)
    assert EnergyMeter(tmp_path / "none").joules() is None
    (tmp_path / "intel-rapl:1" / "max_energy_range_uj").unlink()
    assert EnergyMeter(tmp_path).joules() is None


def test_a_terminal_has_a_table_of_each_run(tmp_path: Path) -> None:
    """Each drawing takes the place of the one before, and none is left."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    table = LiveTable(stream)
    table.draw(["a", "b" * 500])
    table.draw(["c", "d"])
    table.clear()
    first, _, rest = stream.getvalue().partition("\x1b[2A")
    assert first.startswith("\x1b[2Ka\n\x1b[2Kbbb")
    assert len(first) < 300
    assert rest == "\x1b[2Kc\n\x1b[2Kd\n\x1b[2A\x1b[J"


def test_progress_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    api = MockApi(lambda body: [HEAD, said("x"), 0.3, said("y"), end(5, 2)])
    words = ["--num-prompts", "4", "--concurrency", "1", "--input-len", "5", "--output-len", "2"]
    assert bench(api, tmp_path, *words)[0] == 0
    shown = stream.getvalue()
    assert "1 at once [" in shown
    assert "first token" in shown
    assert "1 open, 0 failed" in shown
