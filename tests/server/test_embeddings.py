"""/v1/embeddings: what OpenAI's client gets, what is refused, and what is counted."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from support.fake_core import BOS, MAX_MODEL_LEN, VOCAB, embedding
from support.http_client import Server, running
from support.waiting import until

from penstock.pooling.params import PoolingParams

EMBEDDINGS = "/v1/embeddings"


def tokens(text: str) -> list[int]:
    return list(text.encode())


def vector(prompt: list[int], **options: Any) -> list[float]:
    found: list[float] = np.frombuffer(embedding(prompt, PoolingParams(**options)), "<f4").tolist()
    return found


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "input": "abc", **fields}


def test_openai_client_as_it_comes(server: Server) -> None:
    """Which asks for base64 by itself."""
    answer = server.client().embeddings.create(model="fake", input=["abc", "d"], user="me")
    assert answer.object == "list"
    assert answer.model == "fake"
    assert [(e.object, e.index) for e in answer.data] == [("embedding", 0), ("embedding", 1)]
    for got, text in zip(answer.data, ("abc", "d"), strict=True):
        np.testing.assert_array_equal(np.float32(got.embedding), np.float32(vector(tokens(text))))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (4, 4)


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("abc", [tokens("abc")]),
        (["abc"], [tokens("abc")]),
        ([97, 98], [[97, 98]]),
        ([[97, 98], [BOS]], [[97, 98], [BOS]]),
        (["a", "b", "a"], [tokens(text) for text in "aba"]),
    ],
)
def test_every_form_of_input(server: Server, given: Any, prompts: list[list[int]]) -> None:
    response = server.post(EMBEDDINGS, body(input=given))
    assert response.status_code == 200, response.text
    answer = response.json()
    assert [each["embedding"] for each in answer["data"]] == [vector(p) for p in prompts]
    count = sum(map(len, prompts))
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}


def test_options_reach_the_engine(server: Server) -> None:
    asked = {"pooling": "mean", "normalize": False, "dimensions": 3}
    (got,) = server.post(EMBEDDINGS, body(**asked)).json()["data"]
    assert got["embedding"] == vector(tokens("abc"), **asked)
    (coded,) = server.post(EMBEDDINGS, body(**asked, encoding_format="base64")).json()["data"]
    floats = np.frombuffer(base64.b64decode(coded["embedding"]), "<f4")
    assert floats.tolist() == got["embedding"]


def test_more_inputs_than_are_sent_at_once(server: Server) -> None:
    inputs = [[i % 256, i // 256] for i in range(600)]
    answer = server.post(EMBEDDINGS, body(input=inputs)).json()
    assert [each["index"] for each in answer["data"]] == list(range(600))
    assert [each["embedding"] for each in answer["data"]] == [vector(each) for each in inputs]


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "not an empty list"),
        ({"input": ["a", ""]}, "input[1]", "empty"),
        ({"input": [[1], []]}, "input[1]", "empty"),
        ({"input": ["a", 1]}, "input", "mixture"),
        ({"input": None}, "input", "required"),
        ({"input": {"text": "a"}}, "input", "object"),
        ({"input": [VOCAB]}, "input", "0 to 259"),
        ({"input": [[5], [1, -1]]}, "input[1]", "token id -1"),
        ({"input": "a" * (MAX_MODEL_LEN + 1)}, "input", "513 tokens"),
        ({"input": ["a"] * 2049}, "input", "2049 entries; one request may hold 2048"),
        ({"encoding_format": "hex"}, "encoding_format", "hex"),
        ({"dimensions": 0}, "dimensions", "at least 1"),
        ({"dimensions": 9}, "dimensions", "embeddings have 8"),
        ({"dimensions": 10**30}, "dimensions", "64"),
        ({"dimensions": "8"}, "dimensions", "int"),
        ({"pooling": "max"}, "pooling", "max"),
        ({"normalize": 1}, "normalize", "bool"),
        ({"priority": 2**63}, "priority", "64 bits"),
        ({"cache_salt": "refuse"}, "cache_salt", "refuses"),
        ({"colour": 1}, "colour", "unknown"),
        ({"stream": True}, "stream", "unknown"),
    ],
)
def test_bad_input_names_the_field(
    server: Server, fields: dict[str, Any], param: str, words: str
) -> None:
    error = refused(server.post(EMBEDDINGS, body(**fields)))
    assert error["param"] == param
    assert words in error["message"]
    assert len(error["message"]) < 500


def test_a_prompt_may_fill_the_context(server: Server) -> None:
    assert server.post(EMBEDDINGS, body(input="a" * MAX_MODEL_LEN)).status_code == 200


def test_other_models_are_not_here(server: Server) -> None:
    assert refused(server.post(EMBEDDINGS, body(model="other")), 404)["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        server.client().embeddings.create(model="other", input="a")


def test_the_failure_of_one_input_is_reported_and_ends_the_others(fresh_server: Server) -> None:
    error = refused(fresh_server.post(EMBEDDINGS, body(input=["a"] * 40, cache_salt="fail")), 500)
    assert error["code"] == "generation_failed"
    until(lambda: fresh_server.metric("num_requests_running") == 0, 30, "nothing runs")


@pytest.mark.slow
def test_a_client_that_leaves_stops_the_work(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 500) as slow:
        with pytest.raises(httpx.ReadTimeout):
            slow.http.post(
                EMBEDDINGS, json=body(input=["a"] * 600), timeout=httpx.Timeout(30, read=0.3)
            )
        until(lambda: slow.metric("http_requests_open") == 0, 60, "closed")
        until(lambda: slow.metric("num_requests_running") == 0, 60, "nothing runs")


def test_deadlines_hold(slow_server: Server) -> None:
    response = slow_server.http.post(
        EMBEDDINGS, json=body(), headers={"x-request-timeout": "0.000001"}
    )
    assert refused(response, 504)["code"] == "deadline_exceeded"


def test_metrics_count_tokens_and_no_first_token(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 1) as server:
        answer = server.post(EMBEDDINGS, body(input=["abc", "de"], cache_salt="cached"))
        assert answer.status_code == 200
        metric = server.metric
        assert metric("prompt_tokens_total") == 5
        assert metric("prompt_tokens_cached_total") == 2
        assert metric("request_success_total", finished_reason="stop") == 2
        assert metric("e2e_request_latency_seconds_count") == 2
        assert metric("request_queue_time_seconds_count") == 2
        for name in ("generation_tokens_total", "time_to_first_token_seconds_count"):
            assert metric(name) == 0
        assert metric("request_generation_tokens_count") == 0


def test_many_clients_and_a_stream_at_once(slow_server: Server) -> None:
    """Everybody gets their own."""
    found: dict[int, Any] = {}

    def ask(i: int) -> None:
        with httpx.Client(base_url=slow_server.url, verify=False, timeout=30) as http:
            found[i] = http.post(EMBEDDINGS, json=body(input=[[i], [i, i]])).json()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    text = slow_server.post("/v1/completions", {"model": "fake", "prompt": "a", "max_tokens": 5})
    for thread in threads:
        thread.join()
    assert text.json()["usage"]["completion_tokens"] == 5
    for i in range(8):
        got = [each["embedding"] for each in found[i]["data"]]
        assert got == [vector([i]), vector([i, i])]
