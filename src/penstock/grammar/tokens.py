"""The tokens of a model as llguidance needs them: their bytes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from penstock.interface.mask import TokenMask, mask_of
from penstock.tokenizer import Tokenizer


class Vocabulary:
    """Made once a model; about a microsecond a token, and for 150,000 tokens some 40 MB.

    A token's bytes are what the detokenizer makes of it, so that the text which a client sees is
    the text that the grammar has read. Special tokens stand for no text, and the model's padding
    (ids behind the tokenizer's) and end-of-sequence tokens are never part of one.

    llguidance wants one token that ends a text, and decides about it. The model's own ends are
    decided about in ``grammar.matcher``, so it is given an id behind the vocabulary.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int] = ()
    ) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(t for t in eos_token_ids if 0 <= t < vocab_size)
        self.special_ids = frozenset(t for t in tokenizer.special_ids if t < vocab_size)
        named = min(vocab_size, tokenizer.vocab_size)
        pieces = tokenizer.pieces
        tokens = [pieces[token] for token in range(named)] + [b""] * (vocab_size - named)
        usable = np.array([len(piece) > 0 for piece in tokens], np.bool_)
        usable[sorted(self.eos_token_ids)] = False
        self.usable: TokenMask = mask_of(usable)
        """Mask of the tokens that a text may consist of and that a Lark grammar may name."""
        self.native = LLTokenizer(
            TokenizerWrapper(_Source(tokenizer, tokens, self.special_ids | self.eos_token_ids))
        )


def byte_vocabulary() -> LLTokenizer:
    """The 256 bytes, and an end of text behind them: for trying a grammar without a model."""
    return LLTokenizer(TokenizerWrapper(_Bytes()))


class _Bytes:
    """What llguidance asks a tokenizer for, of one whose tokens are bytes."""

    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end of text>")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


class _Source:
    """What llguidance asks a tokenizer for."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], special: Iterable[int]) -> None:
        self.eos_token_id = len(tokens)
        self.tokens = [*tokens, b"<end of text>"]
        self.special_token_ids = [*sorted(special), self.eos_token_id]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        """Only asked for by grammars that let llguidance choose tokens; ours do not."""
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)
