"""Structured output with the vocabularies of GGUF files: of bytes, and SentencePiece's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gguf_files import write_metadata
from support.grammars import Language, choice, regex, schema
from support.needs import require_shared

from penstock.grammar.compile import compile_grammar
from penstock.grammar.tokens import Vocabulary
from penstock.interface.mask import allowed
from penstock.tokenizer import Tokenizer, load_tokenizer
from penstock.tokenizer.pieces import byte_alphabet

LANGUAGES = [
    choice("the é 🦙 cat", " the", "the cat\n\nsat", "</s>"),
    regex(r"[a-z ]{3,9}(🦙|é|\u0000)"),
    schema(
        {
            "type": "object",
            "properties": {
                "who": {"enum": ["the cat", "é🦙", "</s>", "▁", "<0x41>", "a\nb"]},
                "n": {"type": "integer", "minimum": -7, "maximum": 12},
            },
            "required": ["who", "n"],
            "additionalProperties": False,
        }
    ),
]


def byte_level() -> dict[str, Any]:
    special = {"<s>": 3, "</s>": 3, "<pad>": 5, "<tag>": 4}
    words = ["th", "the", "Ġthe", "ca", "cat", '{"', '":']
    return {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": [*byte_alphabet(), *words, *special],
        "token_type": [1] * (256 + len(words)) + list(special.values()),
        "merges": ["t h", "th e", "Ġ the", "c a", "ca t", '{ "', '" :'],
        "bos_token_id": 256 + len(words),
        "eos_token_id": 257 + len(words),
    }


def sentencepiece(space_prefix: bool) -> dict[str, Any]:
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [*"▁theca\n", "th", "the", "▁the", "▁cat", "ca", "cat", '{"', '":', "{", '"', ":"]
    words += [chr(code) for code in range(33, 127) if chr(code) not in words]
    tokens = [*special, *bytes_, *words]
    return {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3, 5] + [6] * 256 + [1] * len(words),
        "scores": [-float(i) for i in range(len(tokens))],
        "add_space_prefix": space_prefix,
    }


def synthetic(name: str, folder: Path) -> Path:
    fields = byte_level() if name == "bytes" else sentencepiece(name == "space prefix")
    return write_metadata(folder / "model.gguf", {}, **fields)


def walk(vocabulary: Vocabulary, language: Language, seed: int) -> list[int]:
    """Random tokens that the grammar allows, until the text may end and cannot go on."""
    chance, tokens = random.Random(seed), []
    matcher = compile_grammar(language.spec, vocabulary).start(vocabulary.eos_token_ids)
    for _ in range(200):
        matcher.compute()
        choices = set(np.flatnonzero(allowed(matcher.mask, vocabulary.vocab_size)).tolist())
        ends = choices & vocabulary.eos_token_ids
        if not choices - ends or (ends and chance.random() < 0.5):
            return tokens
        tokens.append(chance.choice(sorted(choices - ends)))
        matcher.advance(tokens[-1])
    raise AssertionError(tokens)


def hold(tokenizer: Tokenizer) -> None:
    """Outputs are of the language as a client sees them, behind a prompt and at the beginning."""
    vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size + 3, tokenizer.eos_token_ids)
    prompt = tokenizer.encode("the cat")
    for language in LANGUAGES:
        for seed in range(12):
            tokens = walk(vocabulary, language, seed)
            assert not {*tokens} & (tokenizer.special_ids | tokenizer.settings.silent_ids)
            detokenizer = tokenizer.detokenizer(prompt_token_ids=prompt)
            text = "".join([detokenizer.push([token]) for token in tokens]) + detokenizer.flush()
            assert language.holds(text), (language, text)


@pytest.mark.parametrize("name", ["bytes", "space prefix", "no space prefix"])
def test_synthetic_vocabularies(name: str, tmp_path: Path) -> None:
    hold(load_tokenizer(synthetic(name, tmp_path)))


@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm"])
def test_real_vocabularies(name: str) -> None:
    hold(load_tokenizer(require_shared(f"data/vocab/ggml-vocab-{name}.gguf")))
