"""A server whose prompts and answers are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.http_client import Server, refused, running


@pytest.fixture(scope="module")
def bounded(tokenizer_folder: Path) -> Iterator[Server]:
    with running(tokenizer_folder, 0, max_input_len=50, max_output_len=20) as server:
        yield server


def test_requests_beyond_are_refused(bounded: Server) -> None:
    said = [{"role": "user", "content": "a" * 60}]
    for path, body, param, words in (
        ("/v1/completions", {"prompt": [1] * 51}, "prompt", "max_input_len"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 21}, "max_tokens", "max_output_len"),
        ("/v1/chat/completions", {"messages": said}, "prompt", "max_input_len"),
        ("/v1/embeddings", {"input": [1] * 51}, "input", "max_input_len"),
    ):
        error = refused(bounded.post(path, {"model": "fake", **body}))
        assert error["param"] == param
        assert words in error["message"]
        assert error["code"] == "context_length_exceeded"


def test_answers_end_at_the_bound(bounded: Server) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "ignore_eos": True}
    answer = bounded.post("/v1/chat/completions", body).json()
    assert answer["usage"]["completion_tokens"] == 20
    assert answer["choices"][0]["finish_reason"] == "length"
    cut = {"model": "fake", "prompt": [1] * 90, "truncate_prompt_tokens": -1}
    assert bounded.post("/v1/completions", cut).json()["usage"]["prompt_tokens"] == 50
    card = bounded.http.get("/v1/models").json()["data"][0]
    assert (card["max_input_len"], card["max_output_len"]) == (50, 20)
