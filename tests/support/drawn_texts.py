"""Texts of a grammar, drawn at random token by token, which is what a model does that knows
nothing, of a vocabulary of bytes and special tokens."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import llguidance

from penstock.grammar.spec import GrammarSpec

EOS = 256


class Bytes:
    """A tokenizer of bytes; from 256 on come special tokens."""

    def __init__(self, special: tuple[str, ...]) -> None:
        texts = ("<end of text>", *special)
        self._ids = {text: EOS + i for i, text in enumerate(texts)}
        self.pieces = [bytes([i]) for i in range(256)] + [text.encode() for text in texts]
        self.special_ids = frozenset(self._ids.values())

    def token_id(self, token: str) -> int | None:
        return self._ids.get(token)


class Wrapped:
    """The same, as llguidance asks it."""

    eos_token_id = EOS
    bos_token_id = None

    def __init__(self, tokenizer: Bytes) -> None:
        self.tokens = tokenizer.pieces
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def tokenizers(special: tuple[str, ...]) -> tuple[Any, llguidance.LLTokenizer]:
    own = Bytes(special)
    return own, llguidance.LLTokenizer(llguidance.TokenizerWrapper(Wrapped(own)))


def spelled(tokenizer: Bytes, text: str) -> list[int]:
    token = tokenizer.token_id(text)
    return list(text.encode()) if token is None else [token]


def drawn(
    grammar: GrammarSpec,
    special: tuple[str, ...],
    seed: int,
    begin: str = "",
    closing: str = "</think>",
) -> str | None:
    """A text of the grammar that begins with ``begin``; None where it grew too long."""
    own, theirs = tokenizers(special)
    rng = random.Random(seed)
    matcher = llguidance.LLMatcher(theirs, llguidance.LLMatcher.grammar_from_lark(grammar.text))
    assert not matcher.is_error(), matcher.get_error()
    tokens = spelled(own, begin)
    closes = spelled(own, closing)
    assert matcher.consume_tokens(tokens) or not tokens, matcher.get_error()
    while not matcher.is_stopped():
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(len(own.pieces)) if mask[i >> 3] >> (i & 7) & 1]
        if len(tokens) > 900:
            return None
        # Chance alone would hardly ever spell the end of reasoning.
        if rng.random() < 0.1 and matcher.validate_tokens(closes) == len(closes):
            assert matcher.consume_tokens(closes), matcher.get_error()
            tokens += closes
            continue
        readable = [token for token in allowed if 32 <= token < 127] or allowed
        token = rng.choice(readable if rng.random() < 0.9 else allowed)
        if token == EOS or (EOS in allowed and rng.random() < 0.3):
            break
        assert matcher.consume_token(token), matcher.get_error()
        tokens.append(token)
    return b"".join(own.pieces[token] for token in tokens).decode(errors="replace")
