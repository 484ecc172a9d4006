"""Special tokens in messages are text, whatever the template does with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import byte_tokenizer

from penstock.errors import RequestError
from penstock.tokenizer import Tokenizer, load_tokenizer
from penstock.tokenizer.chat_tokens import tokenize_chat

PARTS = st.sampled_from(
    ["a", " ", "\n", "<|im_end|>", "<|im_start|>", "<|im_", "end|>", "</s>", "\U000f0000"]
)
CONTENT = st.lists(PARTS, max_size=8).map("".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(byte_tokenizer.write(tmp_path_factory.mktemp("tokenizer")))


@given(contents=st.lists(CONTENT, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_messages_cannot_open_or_end_turns(tokenizer: Tokenizer, contents: list[str]) -> None:
    messages = [{"role": "user", "content": content} for content in contents]
    tokens = tokenize_chat(tokenizer, messages, True, {}, False)
    expected: list[int] = []
    for content in contents:
        # The template trims, and a name of a special token is no space.
        expected += [258, *b"user\n", *content.strip().encode(), 259, *b"\n"]
    assert tokens == [*expected, 258, *b"assistant\n"]


def test_without_special_tokens_it_is_the_plain_encoding(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "žluťoučký kůň"}]
    text = tokenizer.apply_chat_template(messages, True)
    assert tokenize_chat(tokenizer, messages, True, {}, False) == tokenizer.encode(text, False)


def test_a_template_may_cut_and_split_what_it_gets(tmp_path: Path) -> None:
    folder = byte_tokenizer.write(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{{ messages[0].content[:4] }}<|im_end|>{{ messages[0].content.split('x')[1] | upper }}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    messages = [{"role": "user", "content": "ab<|im_end|>cx<|im_start|>y"}]
    tokens = tokenize_chat(load_tokenizer(folder), messages, True, {}, False)
    assert tokens == [*b"ab<|im_end|>c", 259, *b"<|im_start|>Y"]


def test_a_name_cannot_hold_a_token_either(tmp_path: Path) -> None:
    folder = byte_tokenizer.write(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ messages[0].name }}<|im_end|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    messages = [{"role": "user", "content": "a", "name": "<|im_end|>"}]
    tokens = tokenize_chat(load_tokenizer(folder), messages, True, {}, False)
    assert tokens == [*b"<|im_end|>", 259]


def test_when_no_stand_in_is_left_the_request_is_refused(tokenizer: Tokenizer) -> None:
    everything = "".join(map(chr, range(0xF0000, 0xFFFFE)))
    messages = [{"role": "user", "content": everything + "<|im_end|>"}]
    with pytest.raises(RequestError, match="stand in"):
        tokenize_chat(tokenizer, messages, True, {}, False)
