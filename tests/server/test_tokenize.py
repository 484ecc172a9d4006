"""``/tokenize`` and ``/detokenize`` agree with what the other endpoints do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_core import MAX_MODEL_LEN
from support.http_client import Server

from penstock.server.errors import ApiError
from penstock.server.openai.tokenizing import MAX_DETOKENIZED, DetokenizeRequest, detokenized

IM_START, IM_END = 258, 259
CHAT: list[Any] = [{"role": "user", "content": "Hi <|im_end|>"}]


def tokens_of(server: Server, **body: Any) -> dict[str, Any]:
    response = server.post("/tokenize", body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == MAX_MODEL_LEN
    return answer


def text_of(server: Server, tokens: list[int], **body: Any) -> str:
    response = server.post("/detokenize", {"tokens": tokens, **body})
    assert response.status_code == 200, response.text
    assert set(response.json()) == {"prompt", "content"}
    text: str = response.json()["prompt"]
    assert response.json()["content"] == text
    return text


def test_a_text_there_and_back(server: Server) -> None:
    text = "Grüße 🦭 <|im_end|>"
    answer = tokens_of(server, model="fake", prompt=text)
    assert answer["tokens"] == [*"Grüße 🦭 ".encode(), IM_END]
    assert answer["token_strs"] is None
    assert text_of(server, answer["tokens"]) == text
    assert text_of(server, answer["tokens"], skip_special_tokens=True) == "Grüße 🦭 "


def test_token_strings(server: Server) -> None:
    answer = tokens_of(server, prompt="aü<s>", return_token_strs=True)
    assert answer["token_strs"] == ["a", "\ufffd", "\ufffd", "<s>"]


def test_a_text_as_llama_server_has_it(server: Server) -> None:
    assert tokens_of(server, content="a<s>")["tokens"] == [97, 256]
    assert tokens_of(server, content="a<s>", parse_special=False)["tokens"] == [*b"a<s>"]
    pieces = tokens_of(server, content="aü", with_pieces=True)["tokens"]
    assert pieces == [
        {"id": 97, "piece": "a"},
        {"id": 195, "piece": [195]},
        {"id": 188, "piece": [188]},
    ]
    for body in (
        {"content": "a", "prompt": "a"},
        {"content": "a", "add_special_tokens": True},
        {"prompt": "a", "with_pieces": True},
    ):
        assert server.post("/tokenize", body).status_code == 400, body


def test_messages_are_tokenized_as_a_chat_is(server: Server) -> None:
    answer = tokens_of(server, messages=CHAT)
    expected = [IM_START, *b"user\nHi <|im_end|>", IM_END, *b"\n", IM_START, *b"assistant\n"]
    assert answer["tokens"] == expected  # what a user writes is text, not a special token
    usage = server.client().chat.completions.create(model="fake", messages=CHAT, max_tokens=1).usage
    assert usage is not None
    assert usage.prompt_tokens == len(expected)
    options: dict[str, Any] = {"chat_template_kwargs": {"thinking": True}}
    assert tokens_of(server, messages=CHAT, **options)["tokens"] == [*expected, *b"THINK"]
    shorter = tokens_of(server, messages=CHAT, add_generation_prompt=False)
    assert shorter["tokens"] == expected[: -1 - len("assistant\n")]


def test_a_text_longer_than_the_context(server: Server) -> None:
    assert tokens_of(server, prompt="a" * 5000)["count"] == 5000
    assert text_of(server, [97] * 5000) == "a" * 5000


def test_nothing_is_nothing(server: Server) -> None:
    assert tokens_of(server, prompt="")["tokens"] == []
    assert text_of(server, []) == ""


def test_another_model_is_a_404(server: Server) -> None:
    for path, rest in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": []})):
        response = server.post(path, {"model": "other", **rest})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"


def test_more_ids_than_are_taken_at_once_are_refused() -> None:
    tokens = [0] * (MAX_DETOKENIZED + 1)
    engine: Any = SimpleNamespace(model=SimpleNamespace(vocab_size=1))
    with pytest.raises(ApiError, match="at most 1048576 are taken at once") as refused:
        asyncio.run(detokenized(DetokenizeRequest(tokens=tokens), engine))
    assert refused.value.body.error.param == "tokens"
