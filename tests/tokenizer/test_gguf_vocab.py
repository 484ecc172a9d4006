"""GGUF vocabularies against llama.cpp's test vectors and against the SentencePiece definition."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.needs import require_shared

from penstock.errors import TokenizerError
from penstock.gguf.arrays import Numbers
from penstock.gguf.metadata import read_metadata
from penstock.tokenizer import Tokenizer
from penstock.tokenizer.codec import LibraryCodec
from penstock.tokenizer.gguf_vocab import build_vocab

NAMES = ["falcon", "llama-bpe", "llama-spm", "mpt", "qwen2"]


@pytest.mark.parametrize("parse_special", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_vectors(
    gguf_tokenizer: Callable[[str], Tokenizer], name: str, parse_special: bool
) -> None:
    tokenizer = gguf_tokenizer(name)
    file = require_shared(f"data/vocab/ggml-vocab-{name}.gguf")
    texts = Path(f"{file}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{file}.out").read_text().split("\n")
    assert len(texts) == len(lines) > 40
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)
        assert ids == [int(token) for token in line.split()], repr(text)
        assert tokenizer.decode(ids) == text


def test_special_tokens_in_text_are_parsed_only_on_demand(
    gguf_tokenizer: Callable[[str], Tokenizer],
) -> None:
    qwen = gguf_tokenizer("qwen2")
    assert qwen.encode("<|im_end|>") == [151645]
    plain = qwen.encode("<|im_end|>", parse_special=False)
    assert 151645 not in plain
    assert qwen.decode(plain) == "<|im_end|>"
    llama = gguf_tokenizer("llama-bpe")
    assert llama.encode("a", add_special_tokens=True)[0] == llama.bos_token_id == 128000
    spm = gguf_tokenizer("llama-spm")
    assert spm.encode("Hello") == [1, 15043]
    assert spm.encode("<s>", add_special_tokens=False) == [1]
    assert 1 not in spm.encode("<s>", add_special_tokens=False, parse_special=False)


def sentencepiece(text: str, scores: dict[str, float]) -> list[str]:
    """The definition: merge the best adjacent pair, leftmost on ties, until none is a piece."""
    symbols = list("\u2581" + text.replace(" ", "\u2581")) if text else []
    while True:
        pairs = [
            (-scores[left + right], i)
            for i, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in scores
        ]
        if not pairs:
            break
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    pieces = []
    for symbol in symbols:
        if symbol in scores:
            pieces.append(symbol)
        else:
            pieces += [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return pieces


@pytest.fixture(scope="module")
def spm_scores() -> dict[str, float]:
    path = require_shared("data/vocab/ggml-vocab-llama-spm.gguf")
    fields: dict[str, Any] = read_metadata(path, TokenizerError)
    names = ("tokens", "scores", "token_type")
    columns = [fields[f"tokenizer.ggml.{name}"] for name in names]
    return {token: score for token, score, kind in zip(*columns, strict=True) if kind == 1}


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.one_of(
        st.text(max_size=40).filter(lambda text: "\u2581" not in text),
        st.text(alphabet="abcdeinorst  ABC.,\n019é你", max_size=60),
        st.lists(
            st.sampled_from(["the", " of", "  ", "ing", "    ", "\n\n", "token", "ization", "aa"]),
            max_size=15,
        ).map("".join),
    )
)
def test_sentencepiece_definition(
    gguf_tokenizer: Callable[[str], Tokenizer], spm_scores: dict[str, float], text: str
) -> None:
    tokenizer = gguf_tokenizer("llama-spm")
    expected = [tokenizer.token_id(piece) for piece in sentencepiece(text, spm_scores)]
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    assert ids == expected
    assert tokenizer.decode(ids) == text


def small(**changes: object) -> dict[str, Any]:
    fields: dict[str, object] = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab"],
        "scores": [0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0],
        "token_type": [2, 3, 3, 1, 1, 1, 1, 1],
        "unknown_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{k}": v for k, v in fields.items() if v is not None}


def test_settings_of_a_small_vocabulary() -> None:
    vocab = build_vocab(small(bos_token_id=1, eos_token_id=2, add_eos_token=True))
    assert (vocab.bos_token_id, vocab.end_token_ids) == (1, (2,))
    assert (vocab.prefix_ids, vocab.suffix_ids) == ((1,), (2,))
    assert vocab.codec.encode(["ab"], True) == [[7]]
    bare = build_vocab(small(add_space_prefix=False, add_bos_token=False))
    assert bare.codec.encode(["ab"], True) == [[6]]
    assert bare.codec.entry(6) == "ab"
    assert bare.prefix_ids == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"model": "t5"}, "'t5'; Penstock reads 'llama'"),
        ({"model": None}, "Penstock reads 'llama'"),
        ({"model": 3}, "not of type str"),
        ({"scores": None}, "scores"),
        ({"scores": [0.0]}, "1 entries for 8 tokens"),
        ({"tokens": ["a"] * 8}, "'a' twice"),
        ({"tokens": [1] * 8}, "not an array of str"),
        ({"bos_token_id": 8}, "outside the vocabulary of 8"),
        (
            {"model": "gpt2", "pre": "new-kind"},
            "'new-kind', which Penstock does not know; name a folder",
        ),
        ({"model": "gpt2", "merges": ["ab"]}, "not a pair"),
        ({"model": "gpt2", "merges": ["a z"]}, "disagree"),
        ({"model": "gpt2", "merges": ["a b", "ab c"]}, "disagree"),
        ({"model": "gpt2"}, "no tokenizer.ggml.merges"),
        ({"model": "gpt2", "merges": ["a b"], "add_bos_token": True}, "no .*bos_token_id"),
        ({"tokens": ["a" * 300_000, *"bcdefgh"]}, "one of 300000 characters"),
        ({"token_type": [1] * 7}, "7 entries for 8 tokens"),
        ({"token_type": []}, "0 entries for 8 tokens"),
        ({"bos_token_id": Numbers(np.arange(9))}, r"is \[0, 1, .*, 7, \.\.\.\], not of type int"),
        ({"add_bos_token": 1}, "not of type bool"),
    ],
)
def test_malformed_vocabularies_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        build_vocab(small(**changes))


def all_splits(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two, best piece first: the definition."""
    order = sorted(scores, key=lambda piece: -scores[piece])
    return [
        (piece[:cut], piece[cut:])
        for piece in order
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]


@settings(max_examples=150, deadline=None)
@given(st.sets(st.text(alphabet="ab\u2581é", min_size=1, max_size=8), min_size=1, max_size=40))
def test_merges_are_all_splits(pieces: set[str]) -> None:
    scores = {piece: -float(i) for i, piece in enumerate(sorted(pieces))}
    tokens = ["<unk>", *scores]
    metadata = small(
        tokens=tokens, scores=[0.0, *scores.values()], token_type=[2] + [1] * len(scores)
    )
    codec = build_vocab(metadata, native=False).codec
    assert isinstance(codec, LibraryCodec)
    merges: Any = json.loads(codec.library.to_str())["model"]["merges"]
    assert [tuple(merge) for merge in merges] == all_splits(scores)


def test_long_pieces_with_few_merges() -> None:
    """Work is in proportion to the text, and not to its square."""
    long = ["x" * 60_000 + end for end in "abcdefgh"]
    tokens = ["<unk>", "x", *"abcdefgh", *long]
    count = len(tokens)
    vocab = build_vocab(
        small(tokens=tokens, scores=[0.0] * count, token_type=[2] + [1] * (count - 1))
    )
    assert vocab.codec.size == count


def test_pieces_with_too_many_merges() -> None:
    tokens = ["<unk>", *("x" * n for n in range(1, 800))]
    count = len(tokens)
    with pytest.raises(TokenizerError, match="too many ways"):
        build_vocab(
            small(tokens=tokens, scores=[0.0] * count, token_type=[2] + [1] * (count - 1)),
            native=False,  # native code makes no list of them
        )


def test_more_special_tokens_than_any_vocabulary_has() -> None:
    count = (1 << 16) + 1
    tokens = [f"<{i}>" for i in range(count)]
    with pytest.raises(TokenizerError, match="calls 65537 tokens control"):
        build_vocab(small(tokens=tokens, token_type=[3] * count, scores=[0.0] * count))


def test_a_panic_of_the_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panic(*args: Any, **options: Any) -> Any:
        raise PanicException("index out of bounds")

    monkeypatch.setattr("penstock.tokenizer.gguf_byte_pairs.BPE", panic)
    with pytest.raises(TokenizerError, match="disagree: index out of bounds"):
        build_vocab(small(), native=False)


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(
        st.one_of(
            st.sampled_from(["<0x41>", "<0xZZ>", "\u2581", " ", "", "Ġ", "é", "🙂", "\0", "ab"]),
            st.text(max_size=4),
        ),
        max_size=12,
        unique=True,
    ),
    merges=st.lists(
        st.one_of(
            st.text(alphabet="ab Ġé🙂", max_size=5),
            st.sampled_from(["a b", "é é", "🙂 🙂", "  ", "a  b", " a b", "Ġ a"]),
        ),
        max_size=6,
    ),
    kinds=st.lists(st.integers(-1, 9), max_size=12),
    model=st.sampled_from(["llama", "gpt2"]),
    pre=st.sampled_from(["gpt-2", "llama-bpe", "default", "qwen2"]),
    text=st.text(max_size=6),
)
def test_any_vocabulary_is_built_or_refused(
    tokens: list[str], merges: list[str], kinds: list[int], model: str, pre: str, text: str
) -> None:
    count = len(tokens)
    fields = small(
        model=model,
        tokens=tokens,
        merges=merges,
        scores=[float(i) for i in range(count)],
        token_type=(kinds + [1] * count)[:count],
        pre=pre,
        unknown_token_id=None,
    )
    with contextlib.suppress(TokenizerError):
        build_vocab(fields)


@pytest.mark.parametrize(
    "scores", [[float("nan")] * 8, [0.0] * 7 + [float("inf")], [1] * 8, ["a"] * 8]
)
def test_scores_that_are_no_numbers(scores: list[Any]) -> None:
    with pytest.raises(TokenizerError, match="scores"):
        build_vocab(small(scores=scores))
