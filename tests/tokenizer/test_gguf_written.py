"""Tokenizers that are written into GGUF files, and read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.needs import Need, lacking, shared
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from penstock.errors import TokenizerError
from penstock.gguf.arrays import Numbers
from penstock.gguf.metadata import GgufValue
from penstock.gguf.special_tokens import Kind
from penstock.tokenizer.gguf_pre_tokenizer_choice import chosen_pre_tokenizer
from penstock.tokenizer.gguf_scores import scores_of
from penstock.tokenizer.gguf_vocab import build_vocab
from penstock.tokenizer.gguf_written import WrittenVocab, written_vocab
from penstock.tokenizer.load import load_tokenizer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BY_CASE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def splits(*patterns: str) -> pre_tokenizers.PreTokenizer:
    cut = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence(
        [*cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


@pytest.mark.parametrize(
    ("steps", "whole_words_first", "name"),
    [
        (splits(LLAMA3), True, "llama-bpe"),
        (splits(LLAMA3), False, "dbrx"),
        (splits(LLAMA3.replace("{1,3}", "")), False, "qwen2"),
        (splits(BY_CASE), True, "tekken"),
        (pre_tokenizers.ByteLevel(add_prefix_space=False), False, "gpt-2"),
        (
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            ),
            False,
            "smollm",
        ),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), False, None),
        (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), False, None),
        (splits(LLAMA3.replace("{1,3}", "{1,2}")), False, None),
        (splits(r"\w+|\s+"), False, None),
    ],
)
def test_the_name_of_a_way_to_cut_texts(
    steps: pre_tokenizers.PreTokenizer, whole_words_first: bool, name: str | None
) -> None:
    found = chosen_pre_tokenizer(steps, lambda kind: kind.whole_words_first == whole_words_first)
    assert found == name


def test_scores_are_in_the_order_of_merges() -> None:
    tokens = ["<unk>", "a", "b", "ab", "aba"]
    kinds = [Kind.UNKNOWN, *[Kind.NORMAL] * 4]
    scores = scores_of(tokens, kinds, ["ab", "aba", "aba"])
    assert scores is not None
    assert scores[3] > scores[4] > scores[1] == scores[2]
    assert scores_of(tokens, kinds, ["aba", "ab", "aba"]) is None


def edited(tmp_path: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """The folder of a tokenizer of bytes whose tokenizer.json was edited."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_checkpoint("llama") / name).read_bytes())
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    edit(definition)
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    return tmp_path


def write(folder: Path, rows: int = 301, ends: tuple[int, ...] = (257,)) -> WrittenVocab:
    return written_vocab(load_tokenizer(folder), rows, ends, str(folder))


def values_of(written: WrittenVocab) -> dict[str, Any]:
    return {key.removeprefix("tokenizer.ggml."): value for key, value in written.values.items()}


def read(written: WrittenVocab) -> dict[str, GgufValue]:
    """As a file's reader has them."""
    return {
        key: Numbers(value) if isinstance(value, np.ndarray) else value  # type: ignore[misc]
        for key, value in written.values.items()
    }


def test_rows_without_a_token_get_one_that_is_never_used(tmp_path: Path) -> None:
    values = values_of(write(tiny_checkpoint("llama")))
    assert values["tokens"][256:261] == ["<s>", "</s>", "<pad>", "[PAD259]", "[PAD260]"]
    assert len(values["tokens"]) == 301
    kinds = values["token_type"]
    assert kinds[[0, 256, 257, 259]].tolist() == [1, 3, 3, 5]
    assert (values["bos_token_id"], values["eos_token_id"]) == (256, 257)
    assert (values["add_bos_token"], values["add_eos_token"]) == (False, False)


def test_tokens_without_a_row_are_noted() -> None:
    written = write(tiny_checkpoint("llama"), rows=258)
    assert len(values_of(written)["tokens"]) == 258
    assert "'<pad>'" in written.notes[0]


def test_tokens_that_end_texts() -> None:
    folder = tiny_checkpoint("llama")
    values = values_of(write(folder, ends=(257, 10, 11)))
    assert (values["eot_token_id"], values["eom_token_id"]) == (10, 11)
    assert set(build_vocab(read(write(folder, ends=(257, 10, 11)))).end_token_ids) >= {257, 10, 11}
    with pytest.raises(TokenizerError, match="4 tokens end a text, and files can name three"):
        write(folder, ends=(257, 10, 11, 12))


def test_tokens_of_users_and_normal_forms(tmp_path: Path) -> None:
    def edit(definition: dict[str, Any]) -> None:
        definition["normalizer"] = {"type": "NFC"}
        definition["added_tokens"][2] |= {"special": False, "content": "<tool>"}

    def config(folder: Path) -> Path:
        path = folder / "tokenizer_config.json"
        path.write_text(path.read_text().replace('"<pad>"', "null"))
        return folder

    written = write(config(edited(tmp_path, edit)))
    assert values_of(written)["token_type"][258] == Kind.USER_DEFINED
    assert "NFC" in written.notes[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "normalizes texts by Lowercase"),
        (
            {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}},
            "in a way that llama.cpp has no name for",
        ),
        (
            {"model": {"type": "WordLevel", "vocab": {"<s>": 0}, "unk_token": "<s>"}},
            "its model is 'WordLevel'",
        ),
    ],
)
def test_what_files_cannot_hold_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    def edit(definition: dict[str, Any]) -> None:
        for name, value in change.items():
            if name == "pre_tokenizer":
                value = {"trim_offsets": True, **value}
            definition[name] = value

    with pytest.raises(TokenizerError, match=message):
        write(edited(tmp_path, edit))


def test_pieces_of_sentencepiece() -> None:
    folder = shared("models/stories260k")
    if not folder.exists():
        lacking(Need.FILE, str(folder))
    written = write(folder, rows=512, ends=(2,))
    values = values_of(written)
    assert (values["model"], values["add_space_prefix"]) == ("llama", True)
    assert values["token_type"][[0, 1, 3, 300]].tolist() == [2, 3, 6, 1]
    own, theirs = build_vocab(read(written)).codec, load_tokenizer(folder)
    text = "Once upon a time, there was a little girl.\n  Ünïcödé 123"
    assert own.encode([text], True) == [theirs.encode(text, add_special_tokens=False)]


def test_merges_in_another_order_than_pieces_are_refused(tmp_path: Path) -> None:
    """Where a tokenizer.json merges otherwise than SentencePiece would."""
    vocab = {
        each: i for i, each in enumerate(["<unk>", "a", "b", "c", "\u2581", "ab", "bc", "abc"])
    }
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    merges = [("ab", "c"), ("b", "c"), ("a", "b"), ("a", "bc")]
    backend = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="merges are not in the order"):
        write(tmp_path, rows=len(vocab), ends=())
