"""SentencePiece vocabularies of GGUF files: byte-pair merges in the order of their scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers

from penstock.errors import TokenizerError
from penstock.tokenizer.gguf_byte_pairs import SPACE, make_model
from penstock.tokenizer.gguf_special_tokens import Kind

_MAX_MERGE_CHARS = 1 << 26
"""Maximum number of characters in all merges; those of Llama 2 have less than a million."""
_MAX_CHARS = 1 << 24
"""Maximum number of characters in all pieces of usual length; Gemma's have two million."""
_LONG = 64
"""Length in characters above which it pays to look at a piece's beginnings in order."""


def sentencepiece(
    vocab: dict[str, int],
    scores: Sequence[float],
    kinds: Sequence[int],
    unknown: str | None,
    space_prefix: bool,
) -> Tokenizer:
    """The adjacent pair whose union scores highest merges first.

    With every way to split a piece as a merge, ranked by the piece's score, BPE does the same.
    Control tokens are no pieces: what a text says never becomes one. Raises TokenizerError.
    """
    if not all(map(math.isfinite, scores)):
        raise TokenizerError("tokenizer.ggml.scores holds a value that is not finite")
    apart = (Kind.CONTROL, Kind.UNKNOWN, Kind.BYTE)
    rank = sorted(
        (token_id for token_id in vocab.values() if kinds[token_id] not in apart),
        key=[-score for score in scores].__getitem__,
    )
    names = list(vocab)
    merges = _all_splits([names[token_id] for token_id in rank])
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
    """Every way to put a piece together from two others, the pieces in their order."""
    known = frozenset(pieces)
    long = _LongPieces(pieces) if any(len(piece) > _LONG for piece in pieces) else None
    room, chars = _MAX_MERGE_CHARS, _MAX_CHARS
    merges: list[tuple[str, str]] = []
    for piece in pieces:
        size = len(piece)
        before = len(merges)
        if long is not None and size > _LONG:
            merges += long.splits(piece)
        else:
            chars -= size
            for cut in range(1, size):
                left = piece[:cut]
                if left in known and (right := piece[cut:]) in known:
                    merges.append((left, right))
        room -= size * (len(merges) - before)
        if room < 0 or chars < 0:
            raise TokenizerError(
                "tokenizer.ggml.tokens is no vocabulary: its pieces can be put together from each "
                "other in too many ways, or they have too many characters"
            )
    return merges


class _LongPieces:
    """The splits of long pieces, in time in proportion to the text and not to its square."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._left = _longest_beginnings(pieces)
        self._right = _longest_beginnings([piece[::-1] for piece in pieces])

    def splits(self, piece: str) -> list[tuple[str, str]]:
        rights = {len(piece) - len(right) for right in _chain(self._right, piece[::-1])}
        cuts = [len(left) for left in _chain(self._left, piece) if len(left) in rights]
        if len(piece) * len(cuts) > _MAX_MERGE_CHARS:
            raise TokenizerError(
                f"tokenizer.ggml.tokens can be put together from each other in too many ways: one "
                f"of {len(piece)} characters in {len(cuts)}"
            )
        return [(piece[:cut], piece[cut:]) for cut in reversed(cuts)]


def _longest_beginnings(pieces: Iterable[str]) -> dict[str, str]:
    """Map each piece to the longest other piece that it begins with, or to "" if there is none.

    Sorted, what begins with a piece follows it at once, so the work is in proportion to the text.
    """
    found: dict[str, str] = {}
    open_pieces = [""]
    for piece in sorted(pieces):
        while not piece.startswith(open_pieces[-1]):
            open_pieces.pop()
        found[piece] = open_pieces[-1]
        open_pieces.append(piece)
    return found


def _chain(longest: dict[str, str], piece: str) -> Iterator[str]:
    """All pieces that ``piece`` begins with, itself left out, the longest first."""
    while piece := longest[piece]:
        yield piece
