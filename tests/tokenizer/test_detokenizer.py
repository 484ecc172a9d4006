"""Incremental detokenizing: whatever the cuts, the text is that of all tokens at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.needs import require_shared
from tokenizers import Tokenizer as Backend
from tokenizers import decoders
from tokenizers.models import BPE, WordLevel

from penstock.errors import TokenizerError
from penstock.gguf.metadata import read_metadata
from penstock.tokenizer import IncrementalDetokenizer, Tokenizer
from penstock.tokenizer.codec import LibraryCodec
from penstock.tokenizer.gguf_vocab import build_vocab
from penstock.tokenizer.pieces import Pieces, read_rule

NAMES = ["byte_level", "spm", "stories", "llama-bpe", "llama-spm"]
relaxed = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def named(
    request: pytest.FixtureRequest, gguf_tokenizer: Callable[[str], Tokenizer]
) -> Callable[[str], Tokenizer]:
    def get(name: str) -> Tokenizer:
        if name.startswith("llama"):
            return gguf_tokenizer(name)
        tokenizer: Tokenizer = request.getfixturevalue(name)
        return tokenizer

    return get


@cache
def of_library(name: str, tokenizer: Tokenizer) -> Backend:
    """The same vocabulary in the library."""
    codec = tokenizer.codec
    if not isinstance(codec, LibraryCodec):
        path = require_shared(f"data/vocab/ggml-vocab-{name}.gguf")
        codec = build_vocab(read_metadata(path, TokenizerError), native=False).codec
        assert isinstance(codec, LibraryCodec)
    return codec.library


def stream(tokenizer: Tokenizer, ids: list[int], skip: bool, cuts: list[int]) -> str:
    """Push the tokens in groups of the given sizes, then one by one; check every piece."""
    detokenizer = tokenizer.detokenizer(skip)
    text, rest = "", list(ids)
    sizes = iter(cuts)
    while rest:
        size = next(sizes, 1)
        text += detokenizer.push(rest[:size])
        del rest[:size]
    return text + detokenizer.flush()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NAMES)
@relaxed
@given(st.data())
def test_any_tokens_in_any_cuts(
    named: Callable[[str], Tokenizer], name: str, data: st.DataObject
) -> None:
    tokenizer = named(name)
    top = min(tokenizer.vocab_size, 700) if data.draw(st.booleans()) else tokenizer.vocab_size
    ids = data.draw(st.lists(st.integers(0, top - 1), max_size=25))
    skip = data.draw(st.booleans())
    cuts = data.draw(st.lists(st.integers(0, 4), max_size=10))
    text = stream(tokenizer, ids, skip, cuts)
    assert text == tokenizer.decode(ids, skip)
    reference = of_library(name, tokenizer).decode(ids, skip_special_tokens=skip)
    if "\ufffd" not in text + reference:
        assert text == reference
    elif "spm" not in name and name != "stories":
        # Byte-level decoding has the same rule for invalid bytes.
        assert text == reference


@pytest.mark.parametrize("name", NAMES)
@relaxed
@given(text=st.text(max_size=60).filter(lambda text: "\u2581" not in text))
def test_round_trip_one_token_at_a_time(
    named: Callable[[str], Tokenizer], name: str, text: str
) -> None:
    tokenizer = named(name)
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    detokenizer = tokenizer.detokenizer()
    parts = [detokenizer.push((token,)) for token in ids]
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)
        assert detokenizer.flush() == ""
    assert "".join(parts) == text


def test_half_a_character_waits(byte_level: Tokenizer) -> None:
    llama = "\U0001f999".encode()
    alphabet = {byte_level.pieces[i]: i for i in range(byte_level.vocab_size)}
    ids = [alphabet[bytes([byte])] for byte in llama]
    detokenizer = byte_level.detokenizer()
    assert [detokenizer.push((token,)) for token in ids] == ["", "", "", "\U0001f999"]
    assert detokenizer.flush() == ""
    cut = byte_level.detokenizer()
    assert cut.push(ids[:3]) == ""
    assert cut.flush() == "\ufffd"
    broken = byte_level.detokenizer()
    assert broken.push([*ids[:2], alphabet[b"a"]]) == "\ufffda"


def test_valid_characters_survive_an_invalid_neighbour(spm: Tokenizer) -> None:
    """tokenizers' ByteFallback would replace the whole run of bytes; text already shown stays."""
    ids = [spm.token_id(f"<0x{byte:02X}>") for byte in "é".encode() + b"\xff"]
    assert spm.decode([i for i in ids if i is not None]) == "é\ufffd"


def test_after_a_prompt_the_text_is_a_continuation(spm: Tokenizer, byte_level: Tokenizer) -> None:
    ids = spm.encode("the quick", add_special_tokens=True)
    space = spm.encode("fox", add_special_tokens=False)
    assert spm.detokenizer().push(space) == "fox"
    assert spm.detokenizer(prompt_token_ids=ids).push(space) == " fox"
    assert spm.detokenizer(prompt_token_ids=[ids[0]]).push(space) == "fox"  # only BOS before
    assert spm.detokenizer(False, prompt_token_ids=[ids[0]]).push(space) == " fox"
    euro = [i for i in range(byte_level.vocab_size) if byte_level.pieces[i] in (b"\xe2", b"\x82")]
    euro.sort(key=lambda i: byte_level.pieces[i], reverse=True)
    last = next(i for i in range(byte_level.vocab_size) if byte_level.pieces[i] == b"\xac")
    detokenizer = byte_level.detokenizer(prompt_token_ids=[*byte_level.encode("1 "), *euro])
    assert detokenizer.push((last,)) == "€"


@relaxed
@given(st.data())
def test_text_after_a_prompt_is_the_difference(spm: Tokenizer, data: st.DataObject) -> None:
    tokens = st.integers(0, spm.vocab_size - 1)
    prompt = data.draw(st.lists(tokens, max_size=8))
    ids = data.draw(st.lists(tokens, max_size=8))
    before = spm.detokenizer()
    shown = before.push(prompt)  # what the prompt shows without being cut off
    whole = spm.decode(prompt + ids)
    after = spm.detokenizer(prompt_token_ids=prompt)
    assert shown + after.push(ids) + after.flush() == whole


def test_skipped_tokens_give_no_text(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a<|end of turn|>b<think>", add_special_tokens=True)
    assert byte_level.decode(ids) == "ab<think>"
    assert byte_level.decode(ids, skip_special_tokens=False) == "a<|end of turn|>b<think>"
    assert byte_level.decode([10**6]) == ""


def test_metaspace_and_missing_decoders() -> None:
    vocab = {"\u2581a": 0, "b\u2581": 1, "<0x41>": 2, "c": 3}
    for scheme in ("always", "first", "never"):
        backend = Backend(BPE(vocab, []))
        backend.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme, split=False)]
        )
        detokenizer = IncrementalDetokenizer(Pieces(LibraryCodec(backend)))
        ids = [0, 1, 2, 0]
        assert "".join(detokenizer.push((i,)) for i in ids) == backend.decode(ids)
    words = Backend(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    detokenizer = IncrementalDetokenizer(Pieces(LibraryCodec(words)))
    assert detokenizer.push([0, 1]) + detokenizer.push([1]) == words.decode([0, 1, 1]) == "a b b"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Strip(" ", 1, 0)]),
    ],
)
def test_decoders_that_are_no_concatenation_are_refused(decoder: decoders.Decoder) -> None:
    with pytest.raises(TokenizerError, match="decoder step"):
        read_rule(json.loads(decoder.__getstate__()))
