"""How vocabularies of GGUF files cut texts into words, against what llama.cpp makes of them.

``gguf_words.json`` is written by ``tests/tools/write_gguf_words.py``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.gguf_files import digest, word_vocabulary

from penstock.errors import TokenizerError
from penstock.tokenizer import Tokenizer, TokenizerSettings
from penstock.tokenizer.gguf_pre_tokenizers import pre_tokenizer, pre_tokenizer_names
from penstock.tokenizer.gguf_vocab import build_vocab


@cache
def words() -> Any:
    return json.loads(Path(__file__).with_name("gguf_words.json").read_text())


def one_of_each_kind() -> list[Any]:
    """All names; but the first of several for the same patterns, they are slow together."""
    kinds = set()
    names = []
    for name in sorted({*pre_tokenizer_names()} - {"gpt2"}):
        marks = [pytest.mark.slow] if pre_tokenizer(name) in kinds else []
        kinds.add(pre_tokenizer(name))
        names.append(pytest.param(name, marks=marks))
    return names


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", one_of_each_kind())
def test_ids_of_llama_cpp(name: str) -> None:
    vocab = build_vocab(
        {f"tokenizer.ggml.{key}": value for key, value in word_vocabulary(name).items()}
    )
    tokenizer = Tokenizer(vocab.codec, TokenizerSettings())
    answer = words()["answers"][name]
    assert [*vocab.prefix_ids, *vocab.suffix_ids] == answer["around"]
    for text, expected in zip(words()["texts"], answer["ids"].split(), strict=True):
        ids = tokenizer.encode(text)
        assert digest(ids) == expected, repr(text)
        assert tokenizer.decode(ids) == text


def test_every_answer_is_compared() -> None:
    assert words()["answers"].keys() | {"gpt2"} == set(pre_tokenizer_names())
    assert pre_tokenizer("gpt2") == pre_tokenizer("gpt-2")  # an old name, which llama.cpp lost


def test_default_is_for_files_that_name_none() -> None:
    assert pre_tokenizer("") == pre_tokenizer("default")
    with pytest.raises(TokenizerError, match=r"'qwen9', which .* knows: qwen2, .*--tokenizer"):
        pre_tokenizer("qwen9")
