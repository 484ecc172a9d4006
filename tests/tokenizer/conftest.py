"""Tokenizers to test with: real ones where the data is present, small trained ones always."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.needs import require_shared
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from penstock.tokenizer import Tokenizer, load_tokenizer

TEXT = [
    "the quick brown fox jumps over the lazy dog, don't they? 123 4567",
    "Größe naïve café 你好世界 こんにちは 🦙🚀 \n\n\t  if x:\n    return y",
] * 20


@pytest.fixture(scope="session")
def gguf_tokenizer() -> Callable[[str], Tokenizer]:
    """Gives the tokenizer of shared/data/vocab/ggml-vocab-NAME.gguf."""

    @cache
    def load(name: str) -> Tokenizer:
        return load_tokenizer(require_shared(f"data/vocab/ggml-vocab-{name}.gguf"))

    return load


@pytest.fixture(scope="session")
def stories() -> Tokenizer:
    return load_tokenizer(require_shared("models/stories260k"))


@pytest.fixture(scope="session")
def byte_level_backend() -> str:
    """tokenizer.json of a small byte-level BPE with special tokens."""
    backend = Backend(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|end of turn|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return backend.to_str()


@pytest.fixture(scope="session")
def spm_backend() -> str:
    """tokenizer.json of a small SentencePiece-like BPE with byte fallback."""
    backend = Backend(BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *bytes_],
        limit_alphabet=60,
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    state = json.loads(backend.to_str())
    # Byte tokens are vocabulary entries, not special tokens.
    state["added_tokens"] = state["added_tokens"][:3]
    backend = Backend.from_str(json.dumps(state))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend.to_str()


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a checkpoint folder: tokenizer.json's text, and other files by name as JSON or text."""

    def write(tokenizer_json: str | None, **files: object) -> Path:
        folder = tmp_path_factory.mktemp("checkpoint")
        if tokenizer_json is not None:
            (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        for name, content in files.items():
            if isinstance(content, str):
                (folder / f"{name}.jinja").write_text(content, encoding="utf-8")
            else:
                (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return folder

    return write


@pytest.fixture(scope="session")
def byte_level(byte_level_backend: str, make_folder: Callable[..., Path]) -> Tokenizer:
    return load_tokenizer(
        make_folder(byte_level_backend, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"})
    )


@pytest.fixture(scope="session")
def spm(spm_backend: str, make_folder: Callable[..., Path]) -> Tokenizer:
    return load_tokenizer(
        make_folder(
            spm_backend,
            tokenizer_config={"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True},
        )
    )
