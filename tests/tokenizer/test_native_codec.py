"""Native code cuts every text into the token ids that the library makes of the same vocabulary."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.needs import NO_NATIVE, require_shared
from tokenizers import AddedToken

from penstock.errors import TokenizerError
from penstock.gguf.arrays import Strings
from penstock.gguf.metadata import read_metadata
from penstock.gguf.native import native
from penstock.tokenizer.codec import Codec, LibraryCodec
from penstock.tokenizer.gguf_pre_tokenizers import PreTokenizer
from penstock.tokenizer.gguf_vocab import build_vocab
from penstock.tokenizer.native_codec import NativeCodec
from penstock.tokenizer.pieces import byte_alphabet

pytestmark = pytest.mark.skipif(native is None, reason=NO_NATIVE)

TEXTS = [
    "",
    "Once upon a time, there was a little girl.",
    "  Ünïcödé 123 你好世界 🦙🚀\n\n\t  if x:\r\n    return y",
    "\0\x7f\u0301\U0010ffff\u2581 \u2581",
    "<s></s><unk><|im_end|><|endoftext|> <s>",
    "a" * 3000 + " " * 500,
]


def both(metadata: Mapping[str, Any]) -> tuple[Codec, Codec]:
    own, theirs = build_vocab(metadata).codec, build_vocab(metadata, native=False).codec
    assert isinstance(theirs, LibraryCodec)
    return own, theirs


def check(own: Codec, theirs: Codec, texts: Sequence[str]) -> None:
    for parse_special in (True, False):
        expected = theirs.encode(texts, parse_special)
        for text, ids, other in zip(texts, own.encode(texts, parse_special), expected, strict=True):
            assert ids == other, repr(text)


def described(codec: Codec) -> tuple[object, ...]:
    added = {
        i: (token.content, token.special, token.lstrip, token.rstrip, token.single_word)
        for i, token in codec.added.items()
    }
    bounds = codec.length_bound(), codec.size_without({}), codec.size_without(codec.added)
    return codec.size, codec.rule, added, bounds


@pytest.mark.parametrize("name", ["falcon", "llama-bpe", "llama-spm", "mpt", "qwen2"])
def test_vocabularies_as_published(name: str) -> None:
    path = require_shared(f"data/vocab/ggml-vocab-{name}.gguf")
    own, theirs = both(read_metadata(path, TokenizerError))
    assert isinstance(own, NativeCodec)
    assert described(own) == described(theirs)
    generator = random.Random(name)
    some = generator.sample(range(own.size), 3000)
    entries = [own.entry(token) for token in some]
    assert entries == [theirs.entry(token) for token in some]
    assert [own.token_id(entry or "") for entry in entries] == some
    drawn = ["".join(generator.choices([e for e in entries if e], k=12)) for _ in range(300)]
    check(own, theirs, [*TEXTS, *drawn, *(text.replace("\u2581", " ") for text in drawn)])


pieces = st.text(alphabet="abcé🙂 \u2581", min_size=1, max_size=6)
texts = st.lists(
    st.text(alphabet="abcdé🙂 \u2581\n<s>\0", max_size=30) | st.text(max_size=20), max_size=8
)


@pytest.mark.slow
@pytest.mark.thinned(2)
@settings(max_examples=200, deadline=None)
@example(  # what has no token and no bytes is dropped, and its neighbours are merged
    entries={"\u2581b", "b", "\u2581"},
    bytes_known=0,
    scores=[-3.0] * 30,
    kinds=[1] * 30,
    space_prefix=True,
    unknown=False,
    asked=["<b", "<<b<", "dd<b\nb", "<"],
)
@given(
    entries=st.sets(pieces, min_size=2, max_size=30),
    bytes_known=st.sampled_from([0, 128, 256]),
    scores=st.lists(st.sampled_from([-3.0, -2.0, -1.0, 0.0]), min_size=30, max_size=30),
    kinds=st.lists(st.sampled_from([1, 1, 1, 1, 3, 4, 5]), min_size=30, max_size=30),
    space_prefix=st.booleans(),
    unknown=st.booleans(),
    asked=texts,
)
def test_any_pieces(
    entries: set[str],
    bytes_known: int,
    scores: list[float],
    kinds: list[int],
    space_prefix: bool,
    unknown: bool,
    asked: list[str],
) -> None:
    spelled = [f"<0x{byte:02X}>" for byte in range(bytes_known)]
    tokens = ["<unk>", "<s>", *spelled, *sorted(entries)]
    count = len(entries)
    fields = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * (len(tokens) - count) + scores[:count],
        "token_type": [2, 3] + [6] * len(spelled) + kinds[:count],
        "add_space_prefix": space_prefix,
        "unknown_token_id": 0 if unknown else -1,
    }
    own, theirs = both({f"tokenizer.ggml.{key}": value for key, value in fields.items()})
    assert isinstance(own, NativeCodec)
    assert described(own) == described(theirs)
    check(own, theirs, asked)


@pytest.mark.thinned(2)
@settings(max_examples=200, deadline=None)
@given(
    splits=st.lists(st.tuples(pieces, pieces), max_size=25),
    kinds=st.lists(st.sampled_from([1, 1, 1, 3, 4]), min_size=30, max_size=30),
    pre=st.sampled_from(["gpt-2", "llama-bpe", "qwen2", "gemma4", "deepseek-llm"]),
    asked=texts,
    data=st.data(),
)
def test_any_merges(
    splits: list[tuple[str, str]],
    kinds: list[int],
    pre: str,
    asked: list[str],
    data: st.DataObject,
) -> None:
    spelled = {ord(c): a for c, a in zip(map(chr, range(256)), byte_alphabet(), strict=True)}

    def spell(text: str) -> str:
        if pre == "gemma4":
            return text.replace(" ", "\u2581")
        return text.encode().decode("latin-1").translate(spelled)

    halves = [(spell(left), spell(right)) for left, right in splits]
    merged = dict.fromkeys(part for pair in halves for part in (*pair, "".join(pair)))
    alphabet = [*byte_alphabet()] if pre != "gemma4" else [*"abcé\u2581", "<0xF0>"]
    tokens = [*dict.fromkeys([*alphabet, *merged])]
    special = kinds[: len(tokens) - len(alphabet)]
    fields = {
        "model": "gemma4" if pre == "gemma4" else "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [1] * (len(tokens) - len(special)) + special,
        "merges": [f"{left} {right}" for left, right in halves],
    }
    assume(not any(" " in part for pair in halves for part in pair))
    more = data.draw(st.lists(st.sampled_from(tokens), max_size=6))
    own, theirs = both({f"tokenizer.ggml.{key}": value for key, value in fields.items()})
    assert isinstance(own, NativeCodec)
    assert described(own) == described(theirs)
    check(own, theirs, [*asked, "".join(more)])


def test_tokens_that_take_white_space() -> None:
    """As those of Phi-3 do."""
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<|end|>", "\u2581", "a", "\u2581a"],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, -3.0, -2.0, -1.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 3, 1, 1, 1],
        "general.name": "Phi-3 mini",
    }
    own, theirs = both(fields)
    assert described(own) == described(theirs)
    check(own, theirs, ["a<|end|> \n a", "<|end|>", "<s> a<|end|>\u3000\u00a0<|end|>a "])
    assert own.length_bound() is None


def test_what_native_code_does_not_take() -> None:
    assert native is not None
    make = native.BytePairs
    tokens, merges = Strings.of(["a", "b", "ab"]), Strings.of(["a b"])
    pairs = make.by_merges(tokens.text, tokens.ends, merges.text, merges.ends, True, False)
    assert (len(pairs), pairs.find("ab"), pairs.find("c"), pairs.entry(2)) == (3, 2, None, "ab")
    assert [pairs.entry(token) for token in (3, -1)] == [None, None]
    none = np.full(1, -1, np.int32)
    assert pairs.encode("abb", [0], [(0, 3)], none) == [2, 1]
    for kinds, offsets, why in (
        ([1], [(0, 1)], "no such kind"),
        ([-1], [(0, 1)], "no such kind"),
        ([0], [], "each word"),
        ([0], [(0, 4)], "behind the text"),
        ([0], [(2, 1)], "before it begins"),
    ):
        with pytest.raises(ValueError, match=why):
            pairs.encode("abb", kinds, offsets, none)
    for listed, why in (
        ("ab", "no pair"),
        (" a", "no pair"),
        ("a ", "no pair"),
        ("b a", "no entry"),
    ):
        merges = Strings.of([listed])
        with pytest.raises(ValueError, match=why):
            make.by_merges(tokens.text, tokens.ends, merges.text, merges.ends, True, False)

    def by_rank(strings: Strings, count: int, unknown: int = -1) -> None:
        make.by_rank(strings.text, strings.ends, np.zeros(count, np.int32), unknown, False)

    with pytest.raises(ValueError, match="same"):
        by_rank(Strings.of(["a", "a"]), 2)
    for ends in ([1, 2], [2, 1, 4], [1, 2, 5]):
        with pytest.raises(ValueError, match=r"before it begins|fill their text"):
            by_rank(Strings(b"abab", np.array(ends)), 3)
    with pytest.raises(ValueError, match="no rank for each"):
        by_rank(tokens, 2)
    with pytest.raises(ValueError, match="none for what is unknown"):
        by_rank(tokens, 3, unknown=3)
    added = [AddedToken("ab", special=True, normalized=False)]
    codec = NativeCodec(pairs, added, build_vocab(small()).codec.rule, PreTokenizer(()))
    assert codec.encode(["abab", "a"], False) == [[2, 2], [0]]


def small() -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
