"""Clients that leave, an engine that dies, a server that is asked to stop."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from typing import Any

import openai
import pytest
from support.fake_core import completion
from support.http_client import Server
from support.streams import posted, raw
from support.waiting import PATIENCE_S, until

BODY = {"model": "fake", "prompt": "abc", "max_tokens": 400}


def wait_until_idle(server: Server) -> None:
    until(lambda: not server.metric("num_requests_running"), PATIENCE_S, "the engine is idle")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_its_request(
    slow_server: Server, path: str, stream: bool
) -> None:
    wait_until_idle(slow_server)  # another test's client may have left a moment ago
    computed = slow_server.metric("tokens_computed_total")
    aborted = slow_server.metric("num_preemptions_total")  # the fake counts aborts there
    body: dict[str, Any] = {**BODY, "stream": stream, "n": 2}
    if "chat" in path:
        del body["prompt"]
        body["messages"] = [{"role": "user", "content": "abc"}]
    if stream:
        with slow_server.http.stream("POST", path, json=body) as response:
            next(response.iter_lines())
    else:
        with raw(slow_server) as sock:
            sock.sendall(posted(body, path))
            until(lambda: slow_server.metric("num_requests_running"), PATIENCE_S, "it runs")
    wait_until_idle(slow_server)
    assert slow_server.metric("tokens_computed_total") < computed + 600  # of 800
    assert slow_server.metric("num_preemptions_total") == aborted + 1


def test_a_reader_that_stalls_holds_nobody_else_up(slow_server: Server) -> None:
    with slow_server.http.stream("POST", "/v1/completions", json={**BODY, "stream": True}):
        answer = slow_server.client().completions.create(model="fake", prompt="x", max_tokens=5)
        assert answer.choices[0].text == bytes(completion(list(b"x"), 5)).decode()


def test_a_refusal_by_the_engine_is_a_400_even_when_streaming(server: Server) -> None:
    for stream in (False, True):
        response = server.post(
            "/v1/completions", {**BODY, "cache_salt": "refuse", "stream": stream}
        )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "cache_salt"


def test_a_request_that_fails_in_the_engine_says_why(server: Server) -> None:
    before = server.metric("request_success_total", finished_reason="error")
    body = {**BODY, "cache_salt": "fail"}
    response = server.post("/v1/completions", body)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the logits are not numbers"
    assert response.json()["error"]["code"] == "generation_failed"
    # The first tokens are told before the failure, but by a machine that is too busy.
    with pytest.raises(openai.APIError, match="the logits are not numbers"):
        list(
            server.client().completions.create(
                model="fake", prompt="abc", stream=True, extra_body={"cache_salt": "fail"}
            )
        )
    assert server.post("/v1/completions", {**BODY, "max_tokens": 1}).status_code == 200
    assert server.metric("request_success_total", finished_reason="error") == before + 2


def test_a_refused_prompt_ends_the_others_of_its_request(server: Server) -> None:
    response = server.post("/v1/completions", {**BODY, "prompt": ["fine", ""]})
    assert response.status_code == 400
    assert "empty" in response.json()["error"]["message"]
    wait_until_idle(server)


def test_a_port_in_use_is_reported_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-m", "penstock", "serve", "no-such-folder", "--port", str(port)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    assert done.returncode == 2
    assert re.fullmatch(
        f"penstock: error: port {port} on 127.0.0.1 is in use; .*--port.*\n", done.stderr
    )
