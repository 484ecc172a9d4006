"""``penstock serve`` with the real engine, which is given other profiles while it serves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.calibrations import demo_calibration
from support.needs import needs_native
from support.profiles import profile_of, profile_of_another
from support.waiting import PATIENCE_S, runs, until

from penstock.cli import main as cli
from penstock.profile import Profile, ProfileOptions
from penstock.written_file import write_json

KEY = "admin"
BODY = {"model": "penstock-demo", "prompt": "def f(x):", "temperature": 0, "ignore_eos": True}

pytestmark = [needs_native, pytest.mark.slow]


class Served:
    """``penstock serve`` of the demo model, and a client of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        first = process.stdout.readline()
        found = re.search(r"at (http://\S+)/v1", first)
        assert found is not None, first
        self.url = found[1]
        self.process = process
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def complete(self, tokens: int) -> str:
        response = self.http.post("/v1/completions", json={**BODY, "max_tokens": tokens})
        assert response.status_code == 200, response.text
        text: str = response.json()["choices"][0]["text"]
        return text

    def admin(self, name: str, body: object = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {KEY}"}
        if body is None:
            return self.http.get(f"/admin/{name}", headers=headers)
        return self.http.post(f"/admin/{name}", json=body, headers=headers)

    def switch(self, profile: Profile, within_s: float = 0) -> httpx.Response:
        document = json.loads(msgspec.json.encode(profile))
        return self.admin("profile", {"profile": document, "within_s": within_s})

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.admin("status").json()
        return found

    @property
    def made(self) -> str | None:
        found: str | None = self.status["profile"]["made"]
        return found

    @property
    def context(self) -> int:
        found: int = self.http.get("/v1/models").json()["data"][0]["max_model_len"]
        return found


class Stream(threading.Thread):
    """A stream in a thread of its own."""

    def __init__(self, served: Served, tokens: int) -> None:
        super().__init__()
        self._served = served
        self._tokens = tokens
        self.begun = threading.Event()
        self.text = ""
        self.ended = False
        self.start()

    def run(self) -> None:
        body = {**BODY, "max_tokens": self._tokens, "stream": True}
        with self._served.http.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                self.begun.set()
                if line == "data: [DONE]":
                    self.ended = True
                elif line:
                    self.text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]

    def whole(self) -> str:
        self.join(PATIENCE_S)
        assert self.ended, self.text
        return self.text


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0"]
    command += ["--backend", "cpu", "--kv-cache-bytes", "16MiB"]
    environment = {**os.environ, "PYTHONPATH": path, "PENSTOCK_ADMIN_KEY": KEY}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    with process:
        try:
            yield Served(process)
        finally:
            process.kill()


def of_demo(made: str, **options: Any) -> Profile:
    return profile_of(ProfileOptions(**options), made=made)


def test_another_profile_and_one_of_another_model(served: Served) -> None:
    expected = served.complete(40)
    done = served.switch(of_demo("next", max_model_len=256, kv_cache_bytes=1 << 30)).json()
    assert done["made"] == "next"
    told = "kv_cache_bytes is 16,777,216, as asked, in the place of the profile's"
    assert any(told in note for note in done["notes"])
    assert (served.made, served.context) == ("next", 256)
    assert served.complete(40) == expected
    pid = served.status["engine"]["pid"]
    same = served.switch(of_demo("same", max_model_len=256, kv_cache_bytes=1 << 29)).json()
    assert (same["made"], same["seconds"], served.status["engine"]["pid"]) == ("same", 0, pid)
    assert any(told in note for note in same["notes"])
    assert served.switch(of_demo("next", max_model_len=256)).json()["notes"] == []
    other = served.switch(profile_of_another(ProfileOptions(max_num_seqs=2)))
    assert other.status_code == 400
    assert "the profile was made for other/8B" in other.json()["error"]["message"]
    assert served.status["engine"]["pid"] == pid
    wrong = served.switch(of_demo("wrong", max_num_seqs=8, max_num_batched_tokens=4))
    assert wrong.status_code == 422
    assert "max_num_batched_tokens" in wrong.json()["error"]["message"]
    assert (served.made, served.context) == ("next", 256)
    assert served.complete(40) == expected


def test_streams_before_during_and_after_a_switch_are_what_they_would_be(served: Served) -> None:
    long, short = served.complete(400), served.complete(60)
    before = [Stream(served, 400) for _ in range(4)]
    for each in before:
        assert each.begun.wait(PATIENCE_S)
    answers: list[httpx.Response] = []
    next_profile = of_demo("next", max_num_seqs=3, max_num_batched_tokens=64)
    asking = threading.Thread(target=lambda: answers.append(served.switch(next_profile)))
    asking.start()
    until(lambda: served.status["profile"]["pending"] or answers, PATIENCE_S, "pending")
    during = [Stream(served, 60) for _ in range(8)]
    asking.join(PATIENCE_S)
    after = [Stream(served, 60) for _ in range(4)]
    assert [each.whole() for each in before] == [long] * 4
    assert [each.whole() for each in (*during, *after)] == [short] * 12
    assert answers[0].status_code == 200, answers[0].text
    assert served.made == "next"
    assert served.admin("check", {}).json() == {"ok": True}
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    "deaths",
    [
        ["server"],
        pytest.param(["engine", "server", "server", "engine"], marks=pytest.mark.slow),
    ],
)
def test_the_profile_in_force_outlives_engine_and_server(served: Served, deaths: list[str]) -> None:
    expected = served.complete(40)
    assert served.switch(of_demo("first", max_model_len=200)).status_code == 200
    assert served.switch(of_demo("second", max_model_len=240, max_waiting=3)).status_code == 200
    places = served.status["engine"]["max_sequences"]
    for who in deaths:
        restarts = served.status[who]["restarts"]
        pid = served.status[who]["pid"]
        os.kill(pid, signal.SIGKILL)

        def back() -> bool:
            try:
                return bool(served.status[who]["restarts"] == restarts + 1)  # noqa: B023
            except httpx.HTTPError:  # its connections have ended with it
                return False

        until(back, PATIENCE_S, f"the {who} is back")
        until(lambda: served.http.get("/ready").status_code == 200, PATIENCE_S, "ready")
        assert not runs(pid)
        assert (served.made, served.context) == ("second", 240)
        assert served.status["engine"]["max_sequences"] == places
        assert served.complete(40) == expected
    assert served.switch(of_demo("third", max_model_len=280)).status_code == 200
    assert served.context == 280


def test_a_proposal_is_applied(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for i in range(60):
        body = {**BODY, "prompt": [i % 250 + 1] * 300, "max_tokens": 4}
        assert served.http.post("/v1/completions", json=body).status_code == 200
    expected = served.complete(40)
    here, profile, out = (tmp_path / name for name in ("here.json", "profile.json", "next.json"))
    write_json(here, demo_calibration())
    write_json(profile, of_demo("former", max_num_seqs=2))
    assert served.switch(Profile.read(profile)).status_code == 200
    words = ["tune", "--watch", served.url, "--profile", str(profile), "--out", str(out)]
    words += ["--backend", "cpu", "--kv-cache-bytes", "16MiB"]
    words += ["--calibration", str(here), "--slo", "ttft:30ms", "--candidates", "8"]
    monkeypatch.delenv("PENSTOCK_ADMIN_KEY", raising=False)
    monkeypatch.setenv("THE_KEY", KEY)
    words += ["--apply", "--apply-within", "0", "--api-key-env", "THE_KEY"]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert "this is a prediction" in told
    assert "applied  " in told
    assert served.made == Profile.read(out).made != "former"
    assert served.complete(40) == expected
