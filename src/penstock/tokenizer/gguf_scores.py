"""Scores of SentencePiece's pieces, out of the merges of a tokenizer.json.

SentencePiece merges the pair whose union scores highest, a tokenizer.json the pair that stands
first. Both do the same where merges stand in the order of the scores of what they make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.gguf.special_tokens import Kind

_UNMADE: Final = -1e6
"""The score of pieces that no merge makes: below all others, whose scores are 0, -1, -2, ..."""


def scores_of(
    tokens: Sequence[str], kinds: Sequence[int], made: Sequence[str]
) -> list[float] | None:
    """The score of each token; ``made`` is what each merge makes, the first to merge first. None
    where merges of one piece stand apart, with those of others between them."""
    scores: dict[str, float] = {}
    last = None
    for piece in made:
        if piece == last:
            continue
        if piece in scores:
            return None
        scores[piece] = -float(len(scores))
        last = piece
    return [
        scores.get(token, _UNMADE) if kind == Kind.NORMAL else 0.0
        for token, kind in zip(tokens, kinds, strict=True)
    ]
