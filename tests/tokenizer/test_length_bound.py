"""A text that the bound refuses has too many tokens, whatever the text and the tokenizer."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import require_shared
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Backend

from penstock import demo_model_path
from penstock.errors import RequestError, TokenizerError
from penstock.gguf.metadata import read_metadata
from penstock.tokenizer import Tokenizer, TokenizerSettings, load_tokenizer
from penstock.tokenizer.codec import LibraryCodec
from penstock.tokenizer.gguf_vocab import build_vocab
from penstock.tokenizer.length_bound import COMPOSED, LengthBound

NAMES = ["demo", "stories", "llama-bpe", "llama-spm", "qwen2", "mpt", "qwen2 with NFC"]


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(
    request: pytest.FixtureRequest, gguf_tokenizer: Callable[[str], Tokenizer]
) -> Tokenizer:
    if request.param == "demo":
        return load_tokenizer(demo_model_path())
    if request.param == "stories":
        found: Tokenizer = request.getfixturevalue("stories")
        return found
    if request.param == "qwen2 with NFC":  # as its tokenizer.json has it
        metadata = read_metadata(require_shared("data/vocab/ggml-vocab-qwen2.gguf"), TokenizerError)
        codec = build_vocab(metadata, native=False).codec
        assert isinstance(codec, LibraryCodec)
        backend = Backend.from_str(codec.library.to_str())
        backend.normalizer = normalizers.NFC()
        return Tokenizer(LibraryCodec(backend), TokenizerSettings())
    return gguf_tokenizer(request.param)


def texts(tokenizer: Tokenizer) -> st.SearchStrategy[str]:
    """Dense ones: the longest tokens, repeated, between anything."""
    longest = sorted(tokenizer.pieces[i] for i in range(tokenizer.vocab_size))
    longest.sort(key=len)
    dense = [piece.decode(errors="replace") for piece in longest[-50:]]
    special = [tokenizer.token_text(i) for i in sorted(tokenizer.special_ids)[:20]]
    shrinking = [
        "\u212a",
        "\u1112\u1161\u11ab",
        "\u03c9\u0313\u0301\u0345",
        "e\u0301",
        "\u1fbe\u0308\u0301",
    ]
    part = st.sampled_from([*dense, *special, *shrinking, " ", "\n", "=", "a"]) | st.text(
        max_size=5
    )
    repeated = st.tuples(part, st.integers(1, 80)).map(lambda pair: pair[0] * pair[1])
    return st.lists(repeated, max_size=8).map("".join)


@pytest.fixture(scope="module")
def strategy(tokenizer: Tokenizer) -> st.SearchStrategy[str]:
    return texts(tokenizer)


@pytest.mark.thinned(4)
@given(data=st.data())
@settings(max_examples=75, deadline=None)
def test_what_is_refused_does_not_fit(
    tokenizer: Tokenizer, strategy: st.SearchStrategy[str], data: st.DataObject
) -> None:
    bound = tokenizer.length_bound
    assert bound is not None
    text = data.draw(strategy)
    count = len(tokenizer.encode(text, False))
    plain = len(tokenizer.encode(text, False, parse_special=False))
    for tokens in (count, plain):
        assert bound.fits(text, tokens)
    size = len(text.encode())
    assert not bound.fits("a" * (bound.longest * count + 1), count)
    assert bound.fits("a" * (bound.longest * count), count)
    assert size <= count * bound.longest * COMPOSED


@pytest.mark.slow
def test_composition_shrinks_to_a_quarter_at_most() -> None:
    """The parts of every character that NFC makes are looked at, as the longest characters that
    they are."""
    longest_for: dict[str, int] = {}
    for code in range(sys.maxunicode + 1):
        if 0xD800 <= code < 0xE000:
            continue
        char = chr(code)
        whole = unicodedata.normalize("NFD", char)
        longest_for[whole] = max(longest_for.get(whole, 0), len(char.encode()))
    for whole in longest_for:
        composed = unicodedata.normalize("NFC", whole)
        if len(composed) == 1:
            parts = sum(longest_for.get(part, len(part.encode())) for part in whole)
            most = max(parts, longest_for[whole])
            assert most <= COMPOSED * len(composed.encode()), hex(ord(composed))


def changed(backend: str, **changes: Any) -> Backend:
    state = json.loads(backend)
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if key:
            state[part][key] = value
        else:
            state[part] = value
    return Backend.from_str(json.dumps(state))


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "Removed",
                "invert": False,
            }
        },
        {"pre_tokenizer": None},
        {"model__end_of_word_suffix": "</w>"},
    ],
)
def test_tokenizers_that_lose_text_have_no_bound(
    byte_level_backend: str, changes: dict[str, Any]
) -> None:
    assert LengthBound.read(Backend.from_str(byte_level_backend)) is not None
    assert LengthBound.read(changed(byte_level_backend, **changes)) is None


def test_tokens_that_swallow_space_leave_no_bound(byte_level_backend: str) -> None:
    backend = Backend.from_str(byte_level_backend)
    backend.add_tokens([AddedToken("<end>", special=True, rstrip=True)])
    assert LengthBound.read(backend) is None
    assert len(backend.encode("<end>" + " " * 10_000).ids) == 1


def test_missing_bytes_leave_no_bound(byte_level_backend: str, spm_backend: str) -> None:
    assert LengthBound.read(Backend.from_str(spm_backend)) is not None
    for backend, entry in ((byte_level_backend, "Ā"), (spm_backend, "<0x00>")):
        state = json.loads(backend)
        vocab = state["model"]["vocab"]
        vocab["other"] = vocab.pop(entry)
        assert LengthBound.read(Backend.from_str(json.dumps(state))) is None


def test_a_long_text_is_refused_by_name(byte_level: Tokenizer) -> None:
    assert byte_level.length_bound is not None
    longest = byte_level.length_bound.longest
    byte_level.check_length("a" * longest * 100, 100, "input[3]")
    with pytest.raises(RequestError, match=rf"input\[3\] has .* {longest} bytes") as caught:
        byte_level.check_length("a" * (longest * 100 + 1), 100, "input[3]")
    assert caught.value.param == "input[3]"
