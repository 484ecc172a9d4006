"""Engines that die, hang, or keep dying; parents that die."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest
from support.http_client import Server, running
from support.streams import bystanders, expected, nothing_left, written
from support.waiting import PATIENCE_S, runs, until

BODY = {"model": "fake", "prompt": "abc", "max_tokens": 400}


def test_a_server_is_ready_and_alive(server: Server) -> None:
    assert server.http.get("/ready").json() == {"status": "ready"}
    assert server.http.get("/health").json() == {"status": "alive"}


@pytest.mark.slow
def test_the_death_of_the_engine_is_reported_and_the_next_one_serves(
    tokenizer_folder: Path,
) -> None:
    # The back-off leaves time to ask a server without an engine.
    with running(tokenizer_folder, 10, backoff_s=3.0) as server:
        whole: list[httpx.Response] = []
        other = threading.Thread(target=lambda: whole.append(server.post("/v1/completions", BODY)))
        other.start()
        streams = [
            server.client().chat.completions.create(
                model="fake",
                messages=[{"role": "user", "content": "a"}],
                max_tokens=400,
                stream=True,
            )
            for _ in range(3)
        ]
        for stream in streams:
            next(stream)
        until(lambda: server.metric("num_requests_running") == 4, PATIENCE_S, "all run")
        os.kill(server.engine_pid, signal.SIGKILL)
        until(lambda: not server.ready(), PATIENCE_S, "not ready")
        for stream in streams:
            with pytest.raises(openai.APIError, match="engine has stopped"):
                for _ in stream:
                    pass
        other.join()
        for response in (
            *whole,
            server.post("/v1/completions", BODY),
            server.post("/v1/completions", {**BODY, "stream": True}),
        ):
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_dead"
            assert int(response.headers["retry-after"]) >= 1
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/v1/models").status_code == 200
        assert server.metric("engine_up") == 0
        until(server.ready, PATIENCE_S, "ready again")
        assert server.metric("engine_up") == 1
        assert server.metric("engine_restarts_total") == 1
        answer = server.post("/v1/completions", {**BODY, "max_tokens": 20}).json()
        assert answer["choices"][0]["text"] == expected("abc", 20)
        server.engine_pid = server.status()["engine"]["pid"]
        with nothing_left(server), bystanders(server):
            pass


@pytest.mark.slow
def test_a_stopped_engine_is_not_ready_and_comes_back(fresh_server: Server) -> None:
    with bystanders(fresh_server, tokens=100):
        os.kill(fresh_server.engine_pid, signal.SIGSTOP)
        try:
            took = until(lambda: not fresh_server.ready(), PATIENCE_S, "not ready")
            assert took > 2  # a short pause is no trouble
            reason = fresh_server.http.get("/ready").json()["error"]["message"]
            assert "nothing has come from the engine" in reason
            assert fresh_server.http.get("/health").status_code == 200
            assert fresh_server.metric("engine_up") == 0  # though the engine cannot be asked
        finally:
            os.kill(fresh_server.engine_pid, signal.SIGCONT)
        until(fresh_server.ready, PATIENCE_S, "ready again")
    assert fresh_server.metric("engine_restarts_total") == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "step"])
def test_an_engine_that_hangs_is_replaced(tokenizer_folder: Path, how: str) -> None:
    with running(tokenizer_folder, 5, hang_s=2, step_timeout_s=2) as server:
        if how == "stop":
            os.kill(server.engine_pid, signal.SIGSTOP)
            stuck = BODY
        else:
            stuck = {**BODY, "cache_salt": "hang"}
        response = server.http.post("/v1/completions", json=stuck)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_dead"
        until(server.ready, PATIENCE_S, "ready again")
        assert not runs(server.engine_pid)
        # On a busy machine the next engine, too, may be silent for longer than these limits.
        short = {**BODY, "max_tokens": 20}
        answers: list[httpx.Response] = []
        until(
            lambda: (
                answers.append(server.post("/v1/completions", short))
                or answers[-1].status_code == 200
            ),
            PATIENCE_S,
            "served again",
        )
        assert answers[-1].json()["choices"][0]["text"] == expected("abc", 20)


@pytest.mark.slow
def test_a_server_whose_engines_keep_dying_gives_up(tokenizer_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        running(tokenizer_folder, 5, stderr, dying_core=True, max_restarts=2) as server,
    ):
        with server.http.stream(
            "POST", "/v1/completions", json={**BODY, "stream": True}
        ) as response:
            parts = response.iter_bytes()
            first = next(parts)
            os.kill(server.engine_pid, signal.SIGKILL)
            rest = b"".join(parts)
        assert b"engine_dead" in rest
        text, reason = written(first)
        assert text
        assert reason is None
        assert server.process.wait(PATIENCE_S) == 1
    assert "died 3 times in a row" in log.read_text()


def test_a_request_that_kills_the_engine_is_not_sent_to_the_next(fresh_server: Server) -> None:
    response = fresh_server.post("/v1/completions", {**BODY, "cache_salt": "kill"})
    assert response.json()["error"]["code"] == "engine_dead"
    until(fresh_server.ready, PATIENCE_S, "ready again")
    time.sleep(0.3)
    assert fresh_server.ready()
    assert fresh_server.metric("engine_restarts_total") == 1


@pytest.mark.slow
def test_the_engine_ends_with_the_server(fresh_server: Server) -> None:
    with fresh_server.http.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as r:
        parts = r.iter_bytes()  # once this is collected, the stream is closed
        next(parts)
        fresh_server.process.kill()
        fresh_server.process.wait()
    until(lambda: not runs(fresh_server.engine_pid), PATIENCE_S, "the engine ends")
