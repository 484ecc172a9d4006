"""``penstock tune --watch``: what a server sees beside what its profile was made for."""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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

APPLIED = {"made": "now", "seconds": 1.25, "waited_s": 3.0, "held": 2, "longest_held_s": 1.5}


@dataclass
class Asked:
    """What was asked of a server's ``/admin/profile``, and what it answers."""

    status: int = 200
    answer: object = None
    bodies: list[Any] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    @property
    def profiles(self) -> list[Profile]:
        return [msgspec.convert(body["profile"], Profile) for body in self.bodies]


@contextmanager
def observed(*requests: int, before: int = 0, asked: Asked | None = None) -> Iterator[str]:
    """A server that has seen so many requests at each look, the last number from then on: one each
    50 ms, prompts of 300 tokens; ``before`` these, it has seen others of 20. It fails looks whose
    number is negative. It is an older one if nobody looks at what is ``asked``."""
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

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found = asked is not None and self.path == "/admin/profile"
            self.send_response(asked.status if found and asked is not None else 404)
            self.end_headers()
            if found and asked is not None:
                asked.bodies.append(json.loads(body))
                asked.keys.append(self.headers["authorization"])
                self.wfile.write(json.dumps(asked.answer or APPLIED).encode())

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


@pytest.mark.slow
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


@pytest.mark.slow
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
        ("", ["--apply-within", "3"], "argument --apply-within: it is for --apply"),
        ("", ["--apply", "--apply-within", "-3"], "not a whole number"),
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


@pytest.mark.parametrize("option", ["--apply", "--apply-within=3"])
def test_only_a_watched_server_is_given_a_profile(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", "--trace", "a.csv", "--out", str(tmp_path / "next.json"), option]
    assert cli.main(words) == 2
    assert f"argument {option.partition('=')[0]}: it is for --watch" in capsys.readouterr().err


@pytest.mark.slow
def test_the_server_is_given_what_is_proposed(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_ADMIN_KEY", "secret")
    asked = Asked(answer={**APPLIED, "notes": ["max_waiting is 3, as asked"]})
    with observed(80, asked=asked) as url:
        assert cli.main(["tune", "--watch", url, *words, "--apply", "--apply-within", "5"]) == 0
    out = capsys.readouterr().out
    told = (
        "this is a prediction",
        "asking http",
        "applied  the engine was exchanged in 1.2 s, after 3.0 s until no request was open; "
        "2 requests were held, for 1.5 s at most",
        "note     max_waiting is 3, as asked",
    )
    at = [out.index(text) for text in told]
    assert at == sorted(at)
    assert "start the next server with it" not in out
    assert asked.profiles == [Profile.read(tmp_path / "next.json")]
    assert asked.bodies[0]["within_s"] == 5
    assert asked.keys == ["Bearer secret"]


def test_without_another_load_the_server_is_asked_for_nothing(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked()
    with observed(20, asked=asked) as url:
        assert cli.main(["tune", "--watch", url, *words, "--apply"]) == 0
    assert "too few to compare" in capsys.readouterr().out
    assert asked.bodies == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Asked(403, {"error": {"message": "no admin key"}}), "no admin key; name the environment"),
        (Asked(401, {"error": {"message": "not valid"}}), "not valid; name the environment"),
        (None, "it is no server of Penstock, or an older one"),
        (Asked(409, {"error": {"message": "another is pending"}}), "another is pending"),
        (Asked(422, {"error": {"message": "too little memory"}}), "too little memory"),
        (Asked(200, {"made": 3}), "is of another version of Penstock"),
    ],
    ids=["no key", "wrong key", "older", "pending", "no start", "other version"],
)
def test_a_server_that_refuses(
    asked: Asked | None,
    told: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tune_run, "tune", lambda *args, **options: False)
    proposed = tmp_path / "next.json"
    proposed.write_bytes((tmp_path / "profile.json").read_bytes())
    with observed(80, asked=asked) as url:
        assert cli.main(["tune", "--watch", url, *words, "--apply", "--interval", "0.01"]) == 1
    err = capsys.readouterr().err
    assert f"the profile was not applied, and is in {proposed}: " in err
    assert told in err
    assert proposed.exists()


def test_it_goes_on_with_the_profile_that_was_applied(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each proposal is made for the load that was seen, and replaces the one before."""
    proposed = tmp_path / "next.json"
    defaults: list[Profile] = []

    def tune(args: Namespace, load: TraceLoad, goal: str, machine: Hardware, verify: bool) -> bool:
        defaults.append(args.profile)
        made_for = msgspec.structs.replace(args.profile.made_for, workload=load.summary())
        made = f"proposal {len(defaults)}"
        write_json(args.out, msgspec.structs.replace(args.profile, made_for=made_for, made=made))
        return False

    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(tune_run, "tune", tune)
    monkeypatch.setattr("penstock.cli.tune_watch.time.sleep", sleep)
    asked = Asked()
    # The load is another, stays so for two looks, changes back, and stays so.
    loads = (80, 80, 80, 0, 0)
    with observed(*loads, before=60, asked=asked) as url:
        words = ["tune", "--watch", url, *words, "--apply", "--interval", "9", "--slo", "ttft:1s"]
        assert cli.main([*words, "--num-prompts", "60"]) == 130
    out = capsys.readouterr().out
    assert [each.made for each in asked.profiles] == ["proposal 1", "proposal 2"]
    assert [each.made for each in defaults] == ["2026-01-01T00:00:00+00:00", "proposal 1"]
    assert Profile.read(proposed).made == "proposal 2"
    assert out.count("there is nothing to propose") == 3
