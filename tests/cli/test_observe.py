"""``penstock observe``: what it prints, writes and refuses, and that what it writes is replayed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support import byte_tokenizer
from support.http_client import Server, running
from support.http_server import ADMIN_KEY
from support.served import serving

from penstock.bench.load.trace_files import TraceScale, read_trace
from penstock.cli import main as cli
from penstock.workload.trace import read_lines
from penstock.workload.trace_line import TraceLine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(byte_tokenizer.write(tmp_path_factory.mktemp("tokenizer")), 1) as server:
        yield server


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ADMIN_KEY", ADMIN_KEY)


@contextmanager
def foreign_server(metrics: bytes) -> Iterator[str]:
    """A server that has nothing but these metrics."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = bool(metrics) and self.path == "/metrics"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(metrics if found else b"{}")

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def ask(server: Server, prompt: Sequence[int], tokens: int = 3) -> None:
    body = {"model": "fake", "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True}
    assert server.post("/v1/completions", body).status_code == 200


def lines_of(path: Path) -> list[TraceLine]:
    return [line for _, line in read_lines(path)]


def test_a_server_is_shown_and_its_trace_written(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for own in range(3):
        ask(server, [*range(80), own])
    trace, figures = tmp_path / "trace.jsonl", tmp_path / "figures.json"
    words = ["observe", server.url, "--out", str(trace), "--json", str(figures)]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "3 completions" in printed
    assert "52.7% of prompt tokens were there before, 0.0% were found" in printed
    assert json.loads(figures.read_text())["workload"]["prefixes"]["shareable_tokens"] == 128
    assert [line.input_length for line in lines_of(trace)] == [81] * 3
    # The file tells the same.
    assert cli.main(["observe", str(trace)]) == 0
    of_file = capsys.readouterr().out.splitlines()
    assert of_file[0].split() == ["trace", str(trace)]
    shared = [line for line in printed.splitlines() if "there before" in line]
    assert shared == [line for line in of_file if "there before" in line]
    # Other programs know blocks of 512 tokens.
    assert cli.main(["observe", server.url, "--out", str(trace), "--block-size", "512"]) == 0
    assert [len(line.hash_ids or ()) for line in lines_of(trace)] == [1] * 3


def test_a_share_of_all_stands_apart_from_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 40, "output_length": 20, "hash_ids": [0]}\n')
    assert cli.main(["observe", str(path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[-2:]] == ["prompt", "32"]
    assert "100.0" in shown[-1]


def test_it_is_shown_again_until_ctrl_c(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.observe.time.sleep", sleep)
    assert cli.main(["observe", server.url, "--follow", "--interval", "7s"]) == 130
    assert capsys.readouterr().out.count("server ") == 2
    assert min(pauses) == 7


def test_what_is_refused(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for words, message in (
        ([server.url, "--since", "1w"], "not a time such as 90s"),
        ([server.url, "--block-size", "64"], "name a file with --out"),
        ([server.url, "--follow", "--out", "x"], "leave --follow out"),
        (["http://127.0.0.1:1"], "check the URL, and that the server runs"),
        ([str(tmp_path / "missing.jsonl")], "No such file"),
    ):
        assert cli.main(["observe", *words]) != 0
        assert message in capsys.readouterr().err
    trace = tmp_path / "empty"
    trace.write_text("\n")
    assert cli.main(["observe", str(trace)]) == 2
    assert "holds no request" in capsys.readouterr().err
    monkeypatch.setenv("PENSTOCK_ADMIN_KEY", "another")
    assert cli.main(["observe", server.url]) == 1
    assert "--api-key-env" in capsys.readouterr().err


def test_another_kind_of_server(capsys: pytest.CaptureFixture[str]) -> None:
    with foreign_server(b"") as url:
        assert cli.main(["observe", url]) == 1
    assert "has no /engine/workload: it is no server of Penstock" in capsys.readouterr().err


METRICS = b"""\
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{engine="0",le="10.0"} 1.0
vllm:request_prompt_tokens_bucket{engine="0",le="100.0"} 8.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf"} 10.0
vllm:request_prompt_tokens_count{engine="0"} 10.0
vllm:request_prompt_tokens_sum{engine="0"} 1500.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop"} 9.0
vllm:request_success_total{engine="0",finished_reason="abort"} 0.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0"} 1500.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0"} 300.0
"""


def test_what_metrics_of_another_kind_of_server_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with foreign_server(METRICS) as url:
        assert cli.main(["observe", url, "--json", str(tmp_path / "found.json")]) == 0
        printed = capsys.readouterr().out
        assert cli.main(["observe", url, "--since", "1h"]) == 1
    rows = {line[:13].strip(): line[13:].strip() for line in printed.splitlines()}
    assert rows["ends"] == "9 stop"
    assert rows["prompt tokens"] == "10: mean 150  p50 10-100  p90 over 100  p99 over 100"
    assert rows["prefix cache"] == "20.0% of what was looked up was found"
    assert "say nothing of arrivals" in printed
    assert json.loads((tmp_path / "found.json").read_text())["prompt_tokens"]["count"] == 10
    broken = METRICS.replace(b'_count{engine="0"} 10.0', b'_count{engine="0"} NaN')
    with foreign_server(broken) as url:
        assert cli.main(["observe", url]) == 1
    assert "request_prompt_tokens_count is nan" in capsys.readouterr().err


@pytest.mark.slow
def test_a_replay_is_observed_as_what_was_observed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known traffic, observed, exported, replayed against another server, observed again."""
    monkeypatch.delenv("PENSTOCK_ADMIN_KEY")
    drawn = ["--workload", "prefix", "--prefix-len", "100", "--prefixes", "2", "--rate", "20"]
    drawn += ["--input-len", "5..70", "--output-len", "2..9", "--num-prompts", "30"]
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    for workload, trace in ((drawn, first), (["--workload", str(first)], second)):
        with serving("--threads", "1") as server:
            url = server.url.removesuffix("/v1")
            words = ["bench", "serve", url, "--endpoint", "completions", "--scrape", "0"]
            assert cli.main([*words, *workload]) == 0
            assert cli.main(["observe", url, "--out", str(trace)]) == 0
    before = lines_of(first)
    after = lines_of(second)[-len(before) :]  # behind the load test's own first request
    for field in ("input_length", "output_length", "cached_tokens"):
        assert [getattr(each, field) for each in before] == [getattr(each, field) for each in after]
    assert _sharing(before) == _sharing(after)
    assert sum(shared for _, shared in _sharing(before)) == 28 * 3
    for one, other in zip(before, after, strict=True):
        assert one.timestamp is not None
        assert other.timestamp is not None
        late = (other.timestamp - (after[0].timestamp or 0)) - one.timestamp
        assert abs(late) < 250  # ms, on a machine that has other work


def _sharing(lines: Sequence[TraceLine]) -> list[tuple[int, int]]:
    """Return for each line with which earlier one it shares most, and how many blocks."""
    found = []
    for i, line in enumerate(lines):
        own = line.hash_ids or []
        best = (-1, 0)
        for j, other in enumerate(lines[:i]):
            same = [a == b for a, b in zip(own, other.hash_ids or [], strict=False)]
            shared = same.index(False) if False in same else len(same)
            if shared > best[1]:
                best = (j, shared)
        found.append(best)
    return found


def test_turns_are_written_as_such(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with running(byte_tokenizer.write(tmp_path / "tokenizer"), 1) as server:
        first = list(range(40))
        answer = server.post(
            "/v1/completions",
            {"model": "fake", "prompt": first, "max_tokens": 40, "ignore_eos": True}
            | {"return_token_ids": True},
        ).json()["choices"][0]["token_ids"]
        ask(server, [*first, *answer, 1, 2, 3])
        assert cli.main(["observe", server.url, "--out", str(trace), "--conversations"]) == 0
    root, turn = lines_of(trace)
    assert (root.input_length, turn.input_length) == (40, 3)
    assert (turn.session_id, turn.after, turn.hash_ids) == (root.session_id, [root.id], None)
    (conversation,) = read_trace(trace, TraceScale()).recorded
    assert conversation.turns[1].continues == 0
