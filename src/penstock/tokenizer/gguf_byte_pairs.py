"""Byte-pair vocabularies of GGUF files, whose merges stand in the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from penstock.errors import TokenizerError
from penstock.tokenizer.gguf_pre_tokenizers import PreTokenizer
from penstock.tokenizer.native_errors import refusing

SPACE = "\u2581"
"""How SentencePiece spells a space."""


def byte_pairs(vocab: dict[str, int], merges: Sequence[str], pre: PreTokenizer) -> Tokenizer:
    """``merges`` are pairs of tokens with a space between them, the first to merge first.

    Raises TokenizerError for a merge that is no pair, or of which a part or the whole is no token.
    """
    pairs: dict[tuple[str, str], None] = {}  # of a merge that stands there twice, the first counts
    for merge in merges:
        at = merge.find(" ", 1)
        if at < 0 or at == len(merge) - 1:
            raise TokenizerError(f"tokenizer.ggml.merges holds {merge!r:.100}, which is not a pair")
        pairs[merge[:at], merge[at + 1 :]] = None
    backend = Tokenizer(
        make_model(
            vocab,
            list(pairs),
            ignore_merges=pre.whole_words_first,
            byte_fallback=not pre.spelled_bytes,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(pre.steps)
    if pre.spelled_bytes:
        backend.decoder = decoders.ByteLevel()
    else:
        backend.normalizer = normalizers.Replace(" ", SPACE)
        backend.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    return backend


def make_model(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> BPE:
    """The library's model. Raises TokenizerError if it refuses."""
    with refusing("the GGUF file's merges and tokens disagree"):
        return BPE(vocab, merges, **options)
