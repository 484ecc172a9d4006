"""SentencePiece vocabularies of GGUF files: byte-pair merges in the order of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, normalizers

from penstock.errors import TokenizerError
from penstock.gguf.arrays import Strings
from penstock.gguf.special_tokens import Kind
from penstock.tokenizer.gguf_byte_pairs import SPACE, make_model

_MAX_MERGE_CHARS = 1 << 26
"""Maximum number of characters in all merges; those of Llama 2 have less than a million."""
_MAX_CHARS = 1 << 23
"""Maximum number of characters in all pieces; Gemma's have two million."""
_Array = NDArray[Any]


def piece_ranks(tokens: Strings, scores: _Array, kinds: _Array) -> NDArray[np.int32]:
    """The place of each token in the order in which pieces merge, the first 0; -1: it is no piece.

    Control tokens are no pieces: what a text says never becomes one. Raises TokenizerError.
    """
    ranks = -scores.astype(np.float64)
    if not np.isfinite(ranks).all():
        raise TokenizerError("tokenizer.ggml.scores holds a value that is not finite")
    apart = np.isin(kinds, (Kind.CONTROL, Kind.UNKNOWN, Kind.BYTE))
    order = np.argsort(ranks, kind="stable")
    pieces = order[~apart[order]]
    if len(tokens.text) > _MAX_CHARS and tokens.lengths[pieces].sum() > _MAX_CHARS:
        raise TokenizerError(
            f"tokenizer.ggml.tokens has more than {_MAX_CHARS} characters, which no vocabulary has"
        )
    places = np.full(len(tokens), -1, np.int32)
    places[pieces] = np.arange(len(pieces), dtype=np.int32)
    return places


def sentencepiece(
    vocab: dict[str, int],
    ranks: NDArray[np.int32],
    unknown: str | None,
    space_prefix: bool,
) -> Tokenizer:
    """The adjacent pair whose union has the lowest rank merges first.

    With every way to split a piece as a merge, ranked as the piece is, BPE does the same. Raises
    TokenizerError.
    """
    names = list(vocab)
    order = np.argsort(ranks, kind="stable")
    merges = _all_splits([names[token_id] for token_id in order[ranks[order] >= 0].tolist()])
    backend = Tokenizer(
        make_model(vocab, merges, unk_token=unknown, fuse_unk=False, byte_fallback=True)
    )
    steps: list[Any] = [normalizers.Replace(" ", SPACE)]
    undo: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if space_prefix:
        steps.insert(0, normalizers.Prepend(SPACE))
        undo.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(undo)
    return backend


def _all_splits(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, the pieces in their order.

    Stretches of the pieces are compared by their hashes, of which each takes the same time however
    long it is. Two different ones have the same by a chance of 1 to 10^7 in a vocabulary, or by
    somebody's design, who could have scored the pieces to his liking as well.
    """
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    ends = np.cumsum(lengths)
    hashes = _Hashes("".join(pieces))
    whole = hashes.of(ends - lengths, ends)
    order = np.argsort(whole)
    whole = whole[order]

    def find(stretches: _Array) -> tuple[_Array, _Array]:
        """Which of them are pieces, and which pieces these are."""
        at = np.minimum(np.searchsorted(whole, stretches), max(len(whole) - 1, 0))
        (found,) = np.nonzero(whole[at] == stretches)
        return found, order[at[found]]

    # Every character but a piece's first is where it may be cut.
    piece = np.repeat(np.arange(len(pieces)), np.maximum(lengths - 1, 0))
    cut = np.arange(len(piece)) + piece + 1
    if not len(piece):
        return []
    found, left = find(hashes.of((ends - lengths)[piece], cut))
    piece, cut = piece[found], cut[found]
    found, right = find(hashes.of(cut, ends[piece]))
    left, piece = left[found], piece[found]
    if lengths[piece].sum() > _MAX_MERGE_CHARS:
        raise TokenizerError(
            "tokenizer.ggml.tokens can be put together from each other in too many ways: the "
            f"merges have more than {_MAX_MERGE_CHARS} characters"
        )
    name = pieces.__getitem__
    return list(zip(map(name, left.tolist()), map(name, right.tolist()), strict=True))


class _Hashes:
    """Hashes of stretches of a text: polynomials in its characters, modulo 2^64."""

    _BASE = 0x9E3779B97F4A7C15

    def __init__(self, text: str) -> None:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
        self._back = _powers(pow(self._BASE, -1, 1 << 64), len(codes) + 1)
        self._sums = np.zeros(len(codes) + 1, np.uint64)
        np.cumsum(codes * _powers(self._BASE, len(codes)), out=self._sums[1:])

    def of(self, starts: _Array, ends: _Array) -> _Array:
        """A stretch has the same hash wherever it stands."""
        return (self._sums[ends] - self._sums[starts]) * self._back[starts]


def _powers(base: int, count: int) -> _Array:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors)
