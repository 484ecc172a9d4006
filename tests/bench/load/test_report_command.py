"""``penstock bench report``, and the same options of ``bench serve``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.load_reports import Drawn, answer, drawn_report, report_of, run_of
from support.mock_api import MockApi, api_thread

from penstock.bench.load.load import Load
from penstock.bench.load.quality import Quality, read_quality
from penstock.bench.load.reading import read_report
from penstock.cli import main as cli
from penstock.errors import ConfigError
from penstock.written_file import write_json

HOSTILE = "</script><script>window.harmed=1</script><img src=x onerror=alert(1)>"


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "one.json"
    write_json(path, drawn_report(Drawn(loads=(Load(None, 1), Load(None, 2)), requests=12)))
    return path


@pytest.mark.slow
def test_a_report_and_plots(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, plots = tmp_path / "r.html", tmp_path / "plots" / "here"
    words = ["--html", str(page), "--plots", str(plots)]
    assert cli.main(["bench", "report", str(result), f"two={result}", *words]) == 0
    names = sorted(path.name for path in plots.iterdir())
    assert names == [
        *("batch.svg", "completion.svg", "frontier.svg", "goodput.svg", "itl-by-position.svg"),
        *("kv-cache.svg", "latency-by-load.svg", "lengths.svg", "ttft-by-prompt.svg"),
    ]
    assert "Example CPU, 4 cores, 16 GiB" in (plots / "batch.svg").read_text()
    text = page.read_text()
    for part in ("example-1b", "Example CPU, 4 cores, 16 GiB", "one", "two", "input_len 64..512"):
        assert part in text
    assert "plots: 9 in" in capsys.readouterr().out


def test_hostile_words(tmp_path: Path) -> None:
    """A server's and a command's words are text, wherever they stand."""
    failed = answer(1, 1.0, [], error=HOSTILE, message=HOSTILE)
    run = run_of([answer(i, i, [9000, 900], 5 + i, pattern=f"{HOSTILE}{i}") for i in range(5)])
    bad = run_of([answer(0, 0.0, [9000]), failed], Load(None, 9))
    path, page = tmp_path / "a.json", tmp_path / "a.html"
    report = report_of([run, bad], model=HOSTILE, command=HOSTILE, machine={"cpu_model": HOSTILE})
    write_json(path, report)
    assert cli.main(["bench", "report", f"<b>&={path}", "--html", str(page)]) == 0
    text = page.read_text()
    assert text.count("</script") == 2
    text = re.sub("<script type=.*?</script>", "", text, flags=re.DOTALL)
    assert "<script" not in text
    assert "<img" not in text
    assert "<b>" not in text
    assert "&lt;/script&gt;" in text


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_large_result_makes_a_small_page(tmp_path: Path, count: int) -> None:
    records = [answer(i, i / 50, [9_000 + i % 977, 800, 900], 10 + i % 701) for i in range(count)]
    path, page = tmp_path / "a.json", tmp_path / "a.html"
    write_json(path, report_of([run_of(records)]))
    assert cli.main(["bench", "report", str(path), "--html", str(page)]) == 0
    assert page.stat().st_size < 1_500_000


def test_serve_writes_the_same(tmp_path: Path) -> None:
    page, plots = tmp_path / "r.html", tmp_path / "plots"
    words = ["--concurrency", "1,2", "--num-prompts", "6", "--input-len", "5..90"]
    words += ["--output-len", "4", "--html", str(page), "--plots", str(plots)]
    with api_thread(MockApi()) as api:
        assert cli.main(["bench", "serve", api.url, *words, "--scrape", "0"]) == 0
    assert "Load test of mock" in page.read_text()
    assert (plots / "completion.svg").exists()


@pytest.mark.parametrize("json_too", [False, True])
def test_a_report_that_fails_loses_no_result(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    json_too: bool,
) -> None:
    def fails(results: object) -> None:
        raise ValueError("max() of nothing")

    monkeypatch.setattr("penstock.bench.load.charts.report.figures_of", fails)
    words = ["--concurrency", "1", "--num-prompts", "2", "--output-len", "2", "--scrape", "0"]
    words += ["--html", str(tmp_path / "r.html")]
    words += ["--json", str(tmp_path / "r.json")] if json_too else []
    with api_thread(MockApi()) as api:
        assert cli.main(["bench", "serve", api.url, *words]) != 0
    (kept,) = tmp_path.glob("*.json")
    said = capsys.readouterr().err
    assert "max() of nothing" in said
    assert str(kept) in said
    assert read_report(kept).runs[0].whole.completed == 2


def test_a_load_that_failed_is_in_no_plot(tmp_path: Path) -> None:
    gone = answer(0, 0.0, [], error="reset", message="gone")
    path, plots = tmp_path / "a.json", tmp_path / "plots"
    write_json(path, report_of([run_of([gone], Load(None, users)) for users in (1, 2)]))
    assert cli.main(["bench", "report", str(path), "--plots", str(plots)]) == 0
    assert not (plots / "latency-by-load.svg").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--html"),
        (["--html", "/nowhere/a.html"], "there is no folder /nowhere"),
        (["--html", "r.html", "--quality", "two=5"], "names are one"),
        (["--html", "r.html", "--quality", "one=-5"], "a number above 0"),
        (["--html", "r.html", "--quality", "one=none.json"], "none.json"),
        (["--html", "r.html", "--quality", "one"], "NAME=PERPLEXITY"),
    ],
)
def test_refused(
    result: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "report", str(result), *words]) != 0
    assert message in capsys.readouterr().err


def test_names_are_unique(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(result), str(result), "--html", "r.html"]
    assert cli.main(["bench", "report", *words]) == cli.EXIT_USAGE
    assert "two results are called 'one'" in capsys.readouterr().err


def test_qualities(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    write_json(path, {"evaluation": "perplexity", "perplexity": 12.5})
    assert read_quality(str(path)) == Quality(12.5, "perplexity")
    write_json(path, {"evaluation": "kl", "kl_mean": 0.01})
    assert read_quality(str(path)) == Quality(0.01, "mean KL divergence, nats")
    write_json(path, {"evaluation": "agreement", "perplexity": 3})
    with pytest.raises(ConfigError, match="not written by"):
        read_quality(str(path))
    path.write_text("[")
    with pytest.raises(ConfigError, match="no JSON object"):
        read_quality(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d | {"version": 99}, "update Penstock"),
        (lambda d: d | {"version": 0}, "measure again"),
        (lambda d: d | {"version": "1"}, "no version that is a number"),
        (lambda d: d | {"benchmark": "latency"}, "'latency', not of a load test"),
        (lambda d: {"evaluation": "kl"}, "'kl', not of a load test"),
        (lambda d: {"a": 1}, "no result of Penstock's"),
        (lambda d: [1], "no result of a load test"),
        (lambda d: d | {"runs": []}, "has no runs"),
        (lambda d: d | {"runs": [{}]}, "damaged"),
    ],
)
def test_foreign_documents(result: Path, change: Any, message: str) -> None:
    document = change(json.loads(result.read_text()))
    result.write_bytes(msgspec.json.encode(document))
    with pytest.raises(ConfigError, match=message):
        read_report(result)


def test_unreadable_documents(result: Path, tmp_path: Path) -> None:
    result.write_bytes(b"{" * 100_000)
    with pytest.raises(ConfigError, match="no result of a load test"):
        read_report(result)
    result.write_bytes(b"")
    with pytest.raises(ConfigError, match="is empty"):
        read_report(result)
    with pytest.raises(OSError, match="a folder"):
        read_report(tmp_path)


def test_fields_of_a_later_penstock_are_left_alone(result: Path) -> None:
    document = json.loads(result.read_text())
    document["more"] = 1
    document["runs"][0]["more"] = 1
    result.write_bytes(msgspec.json.encode(document))
    assert len(read_report(result).runs) == 2
