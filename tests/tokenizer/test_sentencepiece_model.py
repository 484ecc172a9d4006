"""Folders that have SentencePiece's tokenizer.model, with or without a tokenizer.json."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoints import tiny_checkpoint
from support.grammars import choice

from penstock import LLM, SamplingParams
from penstock.errors import TokenizerError
from penstock.gguf.special_tokens import Kind
from penstock.tokenizer.codec import LibraryCodec
from penstock.tokenizer.gguf_written import written_vocab
from penstock.tokenizer.load import load_tokenizer
from penstock.tokenizer.sentencepiece_model import read_sentencepiece
from penstock.tokenizer.tokenizer import Tokenizer

PIECES: tuple[tuple[str, float, int], ...] = (
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    ("<tool>", 0.0, 4),
    *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    *((piece, -1.5 * i, 1) for i, piece in enumerate(["▁t", "he", "▁the", "in", "er"])),
    # Scores need not be in the order of ids, and two may have the same.
    *((piece, -2.0, 1) for piece in ["re", "▁a", "an"]),
    *((letter, -1e3 - i, 1) for i, letter in enumerate("▁abcdefghijklmnopqrstuvwxyz")),
)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes | float | str) -> bytes:
    match value:
        case bool() | int():
            return varint(number << 3) + varint(int(value))
        case float():
            return varint(number << 3 | 5) + struct.pack("<f", value)
        case str():
            return field(number, value.encode())
        case _:
            return varint(number << 3 | 2) + varint(len(value)) + value


def model_bytes(
    pieces: Sequence[tuple[str, float, int]] = PIECES,
    trainer: dict[int, int] | None = None,
    normalizer: dict[int, int | bytes] | None = None,
) -> bytes:
    data = b"".join(
        field(1, field(1, text) + field(2, score) + (field(3, kind) if kind != 1 else b""))
        for text, score, kind in pieces
    )
    data += field(2, b"".join(field(n, v) for n, v in ({3: 2, 35: 1} | (trainer or {})).items()))
    said: dict[int, int | bytes] = {4: 0, **(normalizer or {})}
    return data + field(3, b"".join(field(n, v) for n, v in said.items()))


def folder_of(path: Path, data: bytes | None = None, **config: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "tokenizer.model").write_bytes(model_bytes() if data is None else data)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_a_folder_without_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(
        folder_of(tmp_path, chat_template="{{ messages }}", bos_token="<s>", eos_token="</s>")
    )
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    ids = tokenizer.encode("the tin", add_special_tokens=True)
    names = [PIECES[i][0] for i in ids]
    assert names == ["<s>", "▁the", "▁t", "in"]
    assert tokenizer.decode(ids) == "the tin"
    assert [PIECES[i][0] for i in tokenizer.encode("a<tool>é", add_special_tokens=False)] == [
        *("▁a", "<tool>", "▁", "<0xC3>", "<0xA9>")
    ]


def test_added_tokens(tmp_path: Path) -> None:
    count = len(PIECES)
    folder = folder_of(
        tmp_path,
        eos_token="<end>",
        add_bos_token=False,
        added_tokens_decoder={
            str(count + 2): {"content": "<end>", "special": True},
            "3": {"content": "<tool>", "special": False},
        },
    )
    (folder / "added_tokens.json").write_text(json.dumps({"<more>": count}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token_ids == (count + 2,)
    assert tokenizer.encode("<more><end>", add_special_tokens=True) == [count, count + 2]
    assert tokenizer.decode([count]) == "<more>"


def test_scores_and_kinds_are_written(tmp_path: Path) -> None:
    """Also those of tokens that a tokenizer.json knows as merges alone."""
    folder = folder_of(tmp_path)
    tokenizer = load_tokenizer(folder)
    rows = len(PIECES) + 3
    pieces = read_sentencepiece(folder / "tokenizer.model")
    written = written_vocab(tokenizer, rows, (2,), "here", pieces).values
    scores = written["tokenizer.ggml.scores"]
    kinds = written["tokenizer.ggml.token_type"]
    assert list(scores[: len(PIECES)]) == pytest.approx([score for _, score, _ in PIECES])  # type: ignore[index]
    assert list(kinds) == [*(kind for _, _, kind in PIECES), *[int(Kind.UNUSED)] * 3]  # type: ignore[arg-type]
    assert written["tokenizer.ggml.add_space_prefix"] is True
    assert written["tokenizer.ggml.add_bos_token"] is True
    assert isinstance(tokenizer.codec, LibraryCodec)
    tokenizer.codec.library.save(str(folder / "tokenizer.json"))
    beside = written_vocab(load_tokenizer(folder), rows, (2,), "here", pieces).values
    for name in ("scores", "token_type", "tokens"):
        assert list(beside[f"tokenizer.ggml.{name}"]) == list(written[f"tokenizer.ggml.{name}"])  # type: ignore[arg-type]


def test_a_model_that_is_not_the_tokenizers(tmp_path: Path) -> None:
    """Then scores have the order of merges, as they have without one."""
    folder = folder_of(tmp_path)
    tokenizer = load_tokenizer(folder)
    others = list(PIECES)
    others[-1] = ("ß", -5.0, 1)
    (folder / "tokenizer.model").write_bytes(model_bytes(others))
    pieces = read_sentencepiece(folder / "tokenizer.model")
    assert isinstance(tokenizer.codec, LibraryCodec)
    tokenizer.codec.library.save(str(folder / "tokenizer.json"))
    written = written_vocab(load_tokenizer(folder), len(PIECES), (), "here", pieces).values
    scores = list(written["tokenizer.ggml.scores"])  # type: ignore[arg-type]
    assert scores[260:262] == [0.0, -1.0]
    assert scores[-1] == -1e6


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(folder_of(tmp_path_factory.mktemp("pieces")))


@given(text=st.text("the in are ▁\né", max_size=30))
def test_texts_come_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text.replace("▁", " ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (model_bytes(trainer={3: 1}), "is a model of type unigram, and Penstock reads bpe alone"),
        (model_bytes(trainer={35: 0}), "not backed by bytes"),
        (model_bytes(trainer={24: 1}), "puts spaces behind words"),
        (model_bytes(normalizer={2: b"map"}), "normalizes texts"),
        (model_bytes(normalizer={4: 1}), "takes spaces out of texts"),
        (model_bytes(normalizer={5: 0}), "does not spell spaces"),
        (b"", "is no SentencePiece model, or corrupt: it has no pieces"),
        (model_bytes()[:-3], "corrupt: it ends within"),
        (b"\x0a\xff", "corrupt: it ends within"),
        (b"version https://git-lfs", "corrupt: "),
        (model_bytes([("a", 0.0, 9)]), "of a kind that there is not"),
    ],
)
def test_what_is_not_read(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=message) as raised:
        load_tokenizer(folder_of(tmp_path, data))
    assert "tokenizer.model" in str(raised.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"eos_token": "<nowhere>"}, "'<nowhere>', which tokenizer.model lacks"),
        ({"add_bos_token": "yes"}, "add_bos_token in tokenizer_config.json is 'yes'"),
        ({"added_tokens_decoder": {"-1": {"content": "x"}}}, "the id -1, which no vocabulary has"),
        ({"added_tokens_decoder": {"x": {"content": "x"}}}, "in a form that is not known"),
        ({"added_tokens_decoder": {str(1 << 40): {"content": "x"}}}, "which no vocabulary has"),
    ],
)
def test_what_stands_beside_it(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(folder_of(tmp_path, **config))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.model"
        path.write_bytes(model_bytes(PIECES[:4]) + data)
        with suppress(TokenizerError):
            read_sentencepiece(path)


def test_an_engine_writes_and_constrains_text_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama"), folder)
    (folder / "tokenizer.json").unlink()
    folder_of(folder)
    with LLM(str(folder), threads=1, max_model_len=64, artifact_dir="none") as llm:
        plain, constrained = llm.generate(
            ["the inn"] * 2,
            [
                SamplingParams(max_tokens=8, temperature=0),
                SamplingParams(max_tokens=8, temperature=0, grammar=choice("a train").spec),
            ],
        )
        said = plain.outputs[0]
        assert said.text == llm.get_tokenizer().decode(said.token_ids)
        assert constrained.outputs[0].text == "a train"
