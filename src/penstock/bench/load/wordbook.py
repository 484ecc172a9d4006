"""Random text of given lengths in tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from penstock.bench.load.turn import Piece, Turn
from penstock.bench.load.words import WORDS

_MANY: Final = 48
"""Words of one token each that are enough for texts to differ within their first few."""


@dataclass(frozen=True)
class Wordbook:
    """Words that texts are made of, each with a space before it.

    Byte pairs never join a word with the one before, so a text of n words has n times
    ``tokens_per_word`` tokens, exactly where that is 1 by a tokenizer's own word.
    """

    words: tuple[str, ...] = WORDS
    tokens_per_word: float = 1.0
    known_by: str = "nothing"
    """What told the tokens of a word: "tokenizer", "server", "usage" or "nothing"."""
    salt: int = 0
    """Other texts for each salt: a server that has seen the texts of one run has not seen those of
    the next."""

    around: int = 0
    """Tokens that the server puts around a prompt of one text: those of a chat template, and the
    one that begins a text."""

    @property
    def exact(self) -> bool:
        return self.tokens_per_word == 1 and self.known_by not in ("nothing", "usage")

    def prompt(self, turn: Turn) -> str:
        """What a turn adds, so that a whole prompt has its tokens together with those ``around``
        it; one that has no more than these is a word."""
        if not turn.whole:
            return self.text(turn.content)
        left = sum(part.tokens for part in turn.content if isinstance(part, Piece))
        left = max(1, left - self.around)
        kept: list[Piece | str] = []
        for part in turn.content:
            if isinstance(part, Piece):
                part = Piece(part.key, min(part.tokens, left))
                left -= part.tokens
                if not part.tokens:
                    break
            kept.append(part)
        return self.text(kept)

    def text(self, content: Sequence[Piece | str]) -> str:
        """The texts one after the other."""
        return "".join(part if isinstance(part, str) else self._random(part) for part in content)

    def _random(self, piece: Piece) -> str:
        count = max(1, round(piece.tokens / self.tokens_per_word))
        drawn = _generator((self.salt, *piece.key)).integers(len(self.words), size=count)
        words = self.words
        return " " + " ".join([words[i] for i in drawn.tolist()])


def measured(tokens_of: Callable[[str], int], known_by: str) -> Wordbook:
    """A Wordbook by the number of tokens of each word; of words of one token, if there are enough.

    ``tokens_of`` counts the tokens of a text without those that stand around every prompt.
    """
    first = tokens_of(" a")  # sentencepiece puts a token of its own before a text
    counts = {word: tokens_of(f" a {word}") - first for word in WORDS}
    single = tuple(word for word in WORDS if counts[word] == 1)
    if len(single) >= _MANY:
        return Wordbook(single, 1.0, known_by)
    return Wordbook(WORDS, sum(counts.values()) / len(WORDS), known_by)


def by_pieces(texts: Sequence[str], known_by: str) -> Wordbook:
    """A Wordbook by the texts of the tokens of :func:`all_words`, as servers give them."""
    found = {
        text.lstrip(" \u0120\u2581") for text in texts if text[:1] in (" ", "\u0120", "\u2581")
    }
    single = tuple(word for word in WORDS if word in found)
    if len(single) >= _MANY:
        return Wordbook(single, 1.0, known_by)
    return Wordbook(WORDS, len(texts) / len(WORDS), known_by)


def all_words() -> str:
    """A text of every word once."""
    return "".join(f" {word}" for word in WORDS)


def _generator(key: tuple[int, ...]) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(_seed(key)))


@lru_cache(maxsize=1024)
def _seed(key: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(key)
