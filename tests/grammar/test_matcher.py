"""Masks against the plainest way to make them, and what may be done with a matcher's state."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from support.grammars import EOS, FINITE, PADDED, STOP, Language, byte_vocabulary, choice, regex

import penstock
from penstock.errors import RequestError
from penstock.grammar import matcher as matchers
from penstock.grammar.compile import compile_grammar
from penstock.grammar.matcher import Matcher
from penstock.grammar.notation import MAX_CHOICES
from penstock.grammar.spec import GrammarSpec
from penstock.grammar.tokens import Vocabulary
from penstock.interface.mask import allowed
from penstock.tokenizer import Tokenizer, load_tokenizer

ENDING = frozenset((EOS, STOP))


@pytest.fixture(scope="session")
def bytes_(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return byte_vocabulary(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="session")
def demo_tokenizer() -> Tokenizer:
    return load_tokenizer(Path(penstock.__file__).parent / "demo" / "model")


@pytest.fixture(scope="session")
def demo(demo_tokenizer: Tokenizer) -> Vocabulary:
    """Padded by 60, ends with 0."""
    return Vocabulary(demo_tokenizer, demo_tokenizer.vocab_size + 60, (0,))


def next_tokens(matcher: Matcher, vocab_size: int) -> set[int]:
    return set(np.flatnonzero(allowed(matcher.mask, vocab_size)).tolist())


def walk(matcher: Matcher, vocab_size: int, seed: int, text: set[int]) -> list[int]:
    """Random tokens of text until it is complete."""
    rng, tokens = random.Random(seed), []
    for _ in range(400):
        choices = sorted(next_tokens(matcher, vocab_size) & text)
        if not choices:
            break
        tokens.append(rng.choice(choices))
        if matcher.advance(tokens[-1]):
            break
        if matcher.accepts and rng.random() < 0.3:
            break
    return tokens


def test_choices_are_masked_as_prefixes_say(demo: Vocabulary, demo_tokenizer: Tokenizer) -> None:
    """Every token of the vocabulary, after every prefix, by comparing strings of bytes."""
    texts = ["def main", "def main()", "define", "importance", "ünlü", "{}\n"]
    pieces = [demo_tokenizer.pieces[i] for i in range(demo_tokenizer.vocab_size)]
    wanted = [text.encode() for text in texts]
    start = compile_grammar(choice(*texts).spec, demo).start(frozenset((0,)))
    seen = 0
    for seed in range(12):
        matcher, text, rng = start.clone(frozenset((0,))), b"", random.Random(seed)
        while True:
            expected = {
                i
                for i, piece in enumerate(pieces)
                if i not in demo.special_ids
                and piece
                and any(each.startswith(text + piece) for each in wanted)
            }
            if text in wanted:
                expected.add(0)
            assert next_tokens(matcher, demo.vocab_size) == expected
            seen += 1
            token = rng.choice(sorted(expected))
            if token == 0:
                break
            text += pieces[token]
            if matcher.advance(token):
                assert text in wanted
                assert not any(w.startswith(text) and w != text for w in wanted)
                break
    assert seen > 40


@pytest.mark.thinned(3)
@pytest.mark.parametrize("language", FINITE, ids=lambda each: each.spec.kind)
def test_a_mask_is_the_tokens_that_can_be_taken(language: Language, bytes_: Vocabulary) -> None:
    grammar = compile_grammar(language.spec, bytes_)
    matcher = grammar.start(ENDING)
    for token in walk(grammar.start(ENDING), PADDED, 5, set(range(256)))[:5]:
        taken = set()
        for each in range(PADDED):
            other = matcher.clone(ENDING)
            other.advance(each)
            next_tokens(other, PADDED)  # a matcher that was slow takes tokens only when asked
            if other.error is None and each not in bytes_.special_ids:
                taken.add(each)
        assert next_tokens(matcher, PADDED) - ENDING == taken
        matcher.advance(token)


@pytest.mark.parametrize("language", FINITE, ids=lambda each: each.spec.kind)
@pytest.mark.parametrize("seed", range(15))
def test_what_masks_lead_to_is_of_the_language(
    language: Language, seed: int, bytes_: Vocabulary
) -> None:
    matcher = compile_grammar(language.spec, bytes_).start(ENDING)
    tokens = walk(matcher, PADDED, seed, set(range(256)))
    assert language.holds(bytes(tokens).decode())


def regexes() -> st.SearchStrategy[str]:
    """Regular expressions of finite length, so that a random walk comes to an end."""
    atoms = st.sampled_from(["a", "b", "é", r"\.", "[a-c]", "[^a-y]", "(?:ab)", " ", '"', "/"])

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        counts = st.sampled_from(["?", "{2}", "{0,3}", "{1,2}"])
        return (
            st.lists(inner, min_size=1, max_size=3).map("".join)
            | st.lists(inner, min_size=1, max_size=3).map(lambda some: f"(?:{'|'.join(some)})")
            | st.tuples(inner, counts).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
        )

    return st.recursive(atoms, larger, max_leaves=8)


@given(pattern=regexes(), seed=st.integers(0, 100))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_expressions_are_matched(bytes_: Vocabulary, pattern: str, seed: int) -> None:
    language = regex(pattern)
    try:
        grammar = compile_grammar(language.spec, bytes_)
    except RequestError as error:
        assert "nothing but the empty text" in str(error)  # noqa: PT017
        assert re.fullmatch(pattern, "")
        return
    matcher = grammar.start(ENDING)
    assert matcher.accepts == language.holds("")
    tokens = walk(matcher, PADDED, seed, set(range(256)))
    assert language.holds(bytes(tokens).decode())


def test_ends_are_allowed_exactly_where_the_text_may_end(bytes_: Vocabulary) -> None:
    grammar = compile_grammar(regex("ab?c*").spec, bytes_)
    matcher, deaf = grammar.start(ENDING), grammar.start(frozenset())
    for token in b"\0abccc"[1:]:
        expected = ENDING if matcher.accepts else set()
        assert next_tokens(matcher, PADDED) & set(range(256, PADDED)) == expected
        assert not next_tokens(deaf, PADDED) & set(range(256, PADDED))
        assert not matcher.advance(token)
        deaf.advance(token)
    assert matcher.accepts, matcher.error


def test_padding_special_and_end_tokens_are_no_text(bytes_: Vocabulary) -> None:
    matcher = compile_grammar(regex(r"[\s\S]*").spec, bytes_).start(frozenset())
    assert max(next_tokens(matcher, PADDED)) < 256
    spec = GrammarSpec(kind="lark", text='start: "a" <[258-263]> "b"')
    matcher = compile_grammar(spec, bytes_).start(frozenset((EOS,)))
    matcher.advance(ord("a"))
    assert next_tokens(matcher, PADDED) == {258, 259}, "a special token may be named; padding not"


def test_tokens_are_taken_back(bytes_: Vocabulary) -> None:
    for language in FINITE:
        grammar = compile_grammar(language.spec, bytes_)
        tokens = walk(grammar.start(ENDING), PADDED, 3, set(range(256)))
        matcher, masks = grammar.start(ENDING), []
        for token in tokens:
            masks.append(matcher.mask.tolist())
            matcher.advance(token)
        rng, at = random.Random(0), len(tokens)
        for _ in range(20):
            count = rng.randint(0, at)
            matcher.rollback(count)
            at -= count
            if at < len(tokens):
                assert matcher.mask.tolist() == masks[at]
            while at < len(tokens) and rng.random() < 0.8:
                matcher.advance(tokens[at])
                at += 1
        with pytest.raises(ValueError, match="cannot be taken back"):
            matcher.rollback(at + 1)


def test_many_choices_and_properties(bytes_: Vocabulary) -> None:
    """More items of a parser's state than llguidance allows unless it is told to."""
    texts = [f"{i} of many" for i in range(MAX_CHOICES)]
    matcher = compile_grammar(choice(*texts).spec, bytes_).start(ENDING)
    assert bytes(walk(matcher, PADDED, 2, set(range(256)))).decode() in texts
    value = {"properties": {f"p{i}": {"type": "boolean"} for i in range(1000)}}
    spec = GrammarSpec(kind="json_schema", text=json.dumps({"type": "object", **value}))
    matcher = compile_grammar(spec, bytes_).start(ENDING)
    for token in b'{"p998": true, "p999": false}':
        assert token in next_tokens(matcher, PADDED)
        matcher.advance(token)
    assert matcher.accepts, matcher.error


def test_states_that_others_used_up_are_not_missed(bytes_: Vocabulary) -> None:
    """The lexer's table is shared by all sequences of a grammar; each goes on as if alone."""
    spec = regex("[^;]*[A-Z][^;]{8,24};").spec
    shared = compile_grammar(spec, bytes_)
    for seed in range(120):
        rng = random.Random(seed)
        matcher = shared.start(ENDING)
        alone = compile_grammar(spec, bytes_).start(ENDING) if seed % 10 == 0 else None
        for _ in range(60):
            tokens = [t for t in sorted(next_tokens(matcher, PADDED)) if 64 < t < 123]
            if alone is not None:
                assert alone.mask.tolist() == matcher.mask.tolist()
            token = rng.choice(tokens)
            matcher.advance(token)
            if alone is not None:
                alone.advance(token)
        assert matcher.error is None
        if shared.used_up and seed % 10 == 0:
            break
    assert shared.used_up


def test_states_that_a_sequence_used_up_itself_are_its_fault(bytes_: Vocabulary) -> None:
    matcher = compile_grammar(regex("([^;]*[A-Z][^;]{18,24};)*").spec, bytes_).start(ENDING)
    rng = random.Random(0)
    copies = [matcher.clone() for _ in range(3)]
    for _ in range(20_000):
        tokens = [t for t in next_tokens(matcher, PADDED) if 64 < t < 123 or t == ord(";")]
        if not tokens:
            break
        matcher.advance(rng.choice(sorted(tokens)))
    assert matcher.error is not None
    assert "too complex; simplify" in matcher.error
    assert all(copy.error is None and next_tokens(copy, PADDED) for copy in copies)


def test_clones_go_their_own_ways(bytes_: Vocabulary) -> None:
    matcher = compile_grammar(choice("abc", "abd", "xyz").spec, bytes_).start(ENDING)
    matcher.advance(ord("a"))
    other = matcher.clone(ENDING)
    matcher.advance(ord("b"))
    assert next_tokens(other, PADDED) == {ord("b")}
    assert next_tokens(matcher, PADDED) == {ord("c"), ord("d")}
    assert matcher.advance(ord("d"))
    other.advance(ord("b"))
    assert other.advance(ord("c"))


def test_a_token_that_is_not_allowed_ends_in_an_error(bytes_: Vocabulary) -> None:
    matcher = compile_grammar(choice("abc").spec, bytes_).start(ENDING)
    assert not matcher.advance(ord("x"))
    assert matcher.error
    assert not next_tokens(matcher, PADDED)


class Panic(BaseException):
    """A panic of a library in Rust is such an exception."""


@pytest.mark.parametrize("raised", [Panic, KeyboardInterrupt])
def test_a_panic_at_a_token_is_an_error_of_this_text(
    raised: type[BaseException], bytes_: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panics(native: LLMatcher, token_id: int) -> NoReturn:
        raise raised("index out of bounds")

    matcher = compile_grammar(choice("abc").spec, bytes_).start(ENDING)
    other = matcher.clone()
    monkeypatch.setattr(matchers, "consume_here", panics)
    if raised is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            matcher.advance(ord("a"))
        return
    assert not matcher.advance(ord("a"))
    assert "llguidance failed on this text: index out of bounds" in str(matcher.error)
    monkeypatch.undo()
    assert not matcher.behind
    for each in (matcher, matcher.clone()):
        assert not next_tokens(each, PADDED)
        assert not each.advance(ord("b"))
        assert not next_tokens(each, PADDED)
    assert next_tokens(other, PADDED) == {ord("a")}


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (GrammarSpec(kind="regex", text=r"[^\s\S]"), "regular expression cannot be used"),
        (GrammarSpec(kind="regex", text="(a{0})"), "nothing but the empty text"),
        (
            GrammarSpec(
                kind="json_schema",
                text=json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
            ),
            "JSON schema cannot be used",
        ),
        (GrammarSpec(kind="lark", text="start: start"), "grammar cannot be used"),
        (GrammarSpec(kind="lark", text='start: <|nope|> "a"'), "grammar cannot be used"),
    ],
)
def test_what_no_text_satisfies_is_refused(
    spec: GrammarSpec, match: str, bytes_: Vocabulary
) -> None:
    with pytest.raises(RequestError, match=match) as caught:
        compile_grammar(spec, bytes_, "response_format")
    assert caught.value.param == "response_format"


def test_a_vocabulary_without_the_bytes_is_an_error(
    tmp_path: Path, demo_tokenizer: Tokenizer
) -> None:
    few = byte_vocabulary(tmp_path, padded=100)  # logits for the first 100 bytes
    matcher = compile_grammar(choice("AB", "Ax").spec, few).start(frozenset())
    matcher.advance(ord("A"))
    assert next_tokens(matcher, 100) == {ord("B")}
    with pytest.raises(RequestError, match="no token of this model continues"):
        compile_grammar(choice("xy").spec, few)
