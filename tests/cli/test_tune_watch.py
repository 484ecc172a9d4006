"""``penstock tune --watch``: what a server sees beside what its profile was made for."""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from support.calibrations import demo_calibration
from support.profiles import profile_of

from penstock import hardware
from penstock.cli import main as cli
from penstock.cli import tune_run
from penstock.hardware import Hardware, detect
from penstock.profile import Lengths, Profile, ProfileOptions
from penstock.tune.load import TraceLoad
from penstock.written_file import write_json


@contextmanager
def observed(*requests: int, before: int = 0) -> Iterator[str]:
    """A server that has seen so many requests at each look, the last number from then on: one each
    50 ms, prompts of 300 tokens; ``before`` these, it has seen others of 20. It fails looks whose
    number is negative."""
    looks = list(requests)

    def lines(count: int) -> Iterator[dict[str, float]]:
        for i in range(before + count):
            length = 20 if i < before else 300
            yield {"timestamp": 50.0 * i, "input_length": length, "output_length": 8}
        yield {"timestamp": 50.0 * (before + count), "input_length": 5, "output_length": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            count = looks.pop(0) if len(looks) > 1 else looks[0]
            found = self.path.startswith("/engine/workload?format=jsonl")
            self.send_response(404 if not found else 503 if count < 0 else 200)
            self.end_headers()
            if found and count >= 0:
                self.wfile.write("".join(json.dumps(line) + "\n" for line in lines(count)).encode())

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    here, profile = tmp_path / "here.json", tmp_path / "profile.json"
    write_json(here, demo_calibration())
    made = profile_of(ProfileOptions(max_num_seqs=2, max_waiting=16))
    write_json(profile, msgspec.structs.replace(made, slo=("ttft:30ms",)))
    options = ["--calibration", str(here), "--profile", str(profile), "--backend", "cpu"]
    return [*options, "--out", str(tmp_path / "next.json"), "--candidates", "8"]


def test_the_next_profile_is_proposed(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with observed(80) as url:
        assert cli.main(["tune", "--watch", url, *words]) == 0
    out = capsys.readouterr().out
    for text in (
        "seen: 80 requests at 20.3/s, prompts of 300 tokens",
        "requests: 20.25 a second, 3.8 times as much as the profile was made for (5.4)",
        "prompts, median: 300 tokens, 3.3 times as much",
        "this is a prediction",
    ):
        assert text in out, out
    made = Profile.read(tmp_path / "next.json")
    assert (made.verified, made.slo) == (False, ("ttft:30ms",))
    assert made.made_for.workload.requests == 80


def test_the_latest_requests_are_looked_at(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with observed(80, before=300) as url:
        assert cli.main(["tune", "--watch", url, *words, "--num-prompts", "80"]) == 0
    assert "seen: 80 requests at 20.3/s, prompts of 300 tokens" in capsys.readouterr().out
    made = Profile.read(tmp_path / "next.json")
    assert made.made_for.workload.input_tokens.p50 == 300


def test_the_same_load_needs_nothing(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    made = Profile.read(path)
    load = msgspec.structs.replace(
        made.made_for.workload,
        per_s=20.0,
        input_tokens=Lengths(mean=300, p50=300, p90=300, p99=300, longest=300),
        output_tokens=Lengths(mean=8, p50=8, p90=8, p99=8, longest=8),
    )
    made_for = msgspec.structs.replace(made.made_for, workload=load)
    write_json(path, msgspec.structs.replace(made, made_for=made_for))
    with observed(80) as url:
        assert cli.main(["tune", "--watch", url, *words]) == 0
    assert "there is nothing to propose" in capsys.readouterr().out
    assert not (tmp_path / "next.json").exists()


def test_a_look_that_fails_is_followed_by_the_next(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with observed(20, -1, 80) as url:
        assert cli.main(["tune", "--watch", url, *words, "--interval", "0.01"]) == 0
    out = capsys.readouterr().out
    first, failed, then = map(out.index, ("too few to compare", "this look failed: ", "seen: 80"))
    assert first < failed < then
    assert (tmp_path / "next.json").exists()


def test_a_first_look_that_fails_is_an_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with observed(-1) as url:
        assert cli.main(["tune", "--watch", url, *words, "--interval", "0.01"]) == 1
    assert "503" in capsys.readouterr().err


def test_what_the_server_holds_is_its_successors(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned: list[Hardware] = []

    def tune(args: Namespace, load: TraceLoad, goal: str, machine: Hardware, verify: bool) -> bool:
        planned.append(machine)
        return False

    monkeypatch.setattr(tune_run, "tune", tune)
    now = replace(detect(), memory_available=1 << 20)
    monkeypatch.setattr(hardware, "detect", lambda: now)
    with observed(80) as url:
        assert cli.main(["tune", "--watch", url, *words]) == 0
    out = capsys.readouterr().out
    assert "memory: 1.0 MiB are free, and " in out
    assert " more when the server there has ended" in out
    # This process is the server: what it has of its own is tens of MiB.
    (found,) = planned
    assert 20 << 20 < found.memory_available < 16 << 30


@pytest.mark.parametrize(("requests", "told"), [(0, "no request"), (20, "too few to compare")])
def test_little_was_seen(
    requests: int, told: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with observed(requests) as url:
        assert cli.main(["tune", "--watch", url, *words]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("without", "more", "told"),
    [
        ("--profile", [], "name the --profile that the server runs with"),
        ("--calibration", [], "name a --calibration of this machine"),
        ("", ["--rate", "3"], "--watch takes the server's own times"),
        ("", ["--trace", "a.csv"], "name a --trace of requests, or a server to --watch"),
    ],
)
def test_what_cannot_be(
    without: str, more: list[str], told: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if without:
        at = words.index(without)
        words = [*words[:at], *words[at + 2 :]]
    assert cli.main(["tune", "--watch", "http://127.0.0.1:9", *words, *more]) == 2
    assert told in capsys.readouterr().err
