"""A GGUF file's vocabulary as a ``tokenizers`` tokenizer that gives llama.cpp's token ids."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from penstock.errors import TokenizerError
from penstock.gguf.metadata import GgufValue, Numbers
from penstock.tokenizer.native_errors import refusing

_T = TypeVar("_T", bool, int, float, str)

_MAX_MERGE_CHARS = 1 << 26
"""Maximum number of characters in all merges of a SentencePiece vocabulary; those of Llama 2 have
less than a million."""

_SPACE = "\u2581"  # how SentencePiece spells a space

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = f"(?i:{_CONTRACTIONS})"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"


def _with_digits(digits: str) -> str:
    """The pattern of cl100k_base, whose users differ in how many digits make a word."""
    return (
        rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_LLAMA3 = (_with_digits(r"\p{N}{1,3}"),)
_PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (_PUNCTUATION.replace("`", ""), _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "gpt2": (_GPT2,),
    "mpt": (_GPT2,),
    "falcon": (_PUNCTUATION, _GPT2, "[0-9][0-9][0-9]"),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": (_with_digits(r"\p{N}"),),
    "deepseek-r1-qwen": (_with_digits(r"\p{N}"),),
}
"""Patterns for each value of ``tokenizer.ggml.pre``. The matches of a pattern become words; each
pattern is applied within the words that the patterns before it left."""

_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3"})
"""A word that is in the vocabulary is taken whole, whatever the merges would make of it. These
also begin texts with the BOS token unless the file says otherwise."""


class _Kind(enum.IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GgufVocab:
    """A vocabulary and the settings that come with it."""

    backend: Backend
    bos_token_id: int | None
    eos_token_id: int | None
    add_bos: bool
    add_eos: bool


def build_vocab(metadata: dict[str, GgufValue]) -> GgufVocab:
    """Build the tokenizer that ``tokenizer.ggml.*`` describes. Raises TokenizerError."""
    fields = _Fields(metadata)
    model = fields.scalar("model", str, "")
    tokens = fields.array("tokens", str)
    if not tokens:
        raise TokenizerError(
            "the GGUF file has no tokenizer.ggml.tokens; convert the model again with its "
            "vocabulary, or give a tokenizer folder"
        )
    kinds = fields.array("token_type", int, len(tokens)) or [int(_Kind.NORMAL)] * len(tokens)
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocab[token] != i)
        raise TokenizerError(f"tokenizer.ggml.tokens holds {twice!r} twice")
    pre = fields.scalar("pre", str, "default")
    unknown = _special_id(fields, "unknown_token_id", len(tokens))
    if model == "llama":
        scores = fields.array("scores", float, len(tokens))
        if not scores:
            raise TokenizerError(
                "the GGUF file has no tokenizer.ggml.scores, which model llama needs"
            )
        if not all(map(math.isfinite, scores)):
            raise TokenizerError("tokenizer.ggml.scores holds a value that is not finite")
        backend = _sentencepiece(
            vocab,
            scores,
            kinds,
            unknown=None if unknown is None else tokens[unknown],
            space_prefix=fields.scalar("add_space_prefix", bool, True),
        )
    elif model == "gpt2":
        backend = _byte_level(vocab, fields.array("merges", str), pre)
    else:
        raise TokenizerError(
            f"tokenizer.ggml.model is {model!r}; Penstock converts 'llama' and 'gpt2'. Give the "
            "tokenizer of the original checkpoint (a folder with tokenizer.json) instead"
        )
    _add_special(backend, tokens, kinds)
    return GgufVocab(
        backend,
        bos_token_id=_special_id(fields, "bos_token_id", len(tokens)),
        eos_token_id=_special_id(fields, "eos_token_id", len(tokens)),
        add_bos=fields.scalar("add_bos_token", bool, model == "llama" or pre in _WHOLE_WORDS_FIRST),
        add_eos=fields.scalar("add_eos_token", bool, False),
    )


def _sentencepiece(
    vocab: dict[str, int],
    scores: Sequence[float],
    kinds: Sequence[int],
    unknown: str | None,
    space_prefix: bool,
) -> Backend:
    """SentencePiece BPE: the adjacent pair whose union scores highest merges first.

    With every way to split a piece as a merge, ranked by the piece's score, BPE does the same.
    """
    merges: list[tuple[float, int, str, str]] = []
    pieces = [
        piece
        for piece, token_id in vocab.items()
        if kinds[token_id] not in (_Kind.CONTROL, _Kind.UNKNOWN, _Kind.BYTE)
    ]
    left_of = _longest_beginnings(vocab)
    right_of = _longest_beginnings([piece[::-1] for piece in vocab])
    room = _MAX_MERGE_CHARS
    for piece in pieces:
        rights = {len(piece) - len(right) for right in _chain(right_of, piece[::-1])}
        cuts = [len(left) for left in _chain(left_of, piece) if len(left) in rights]
        room -= len(piece) * len(cuts)
        if room < 0:
            raise TokenizerError(
                "tokenizer.ggml.tokens can be put together from each other in too many ways: "
                f"the merges have more than {_MAX_MERGE_CHARS} characters"
            )
        token_id = vocab[piece]
        merges += [(-scores[token_id], token_id, piece[:cut], piece[cut:]) for cut in cuts[::-1]]
    merges.sort(key=lambda merge: merge[:2])
    backend = Backend(
        _bpe(
            vocab,
            [(left, right) for _, _, left, right in merges],
            unk_token=unknown,
            fuse_unk=False,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", _SPACE)]
    undo: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if space_prefix:
        steps.insert(0, normalizers.Prepend(_SPACE))
        undo.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(undo)
    return backend


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


def _byte_level(vocab: dict[str, int], merges: Sequence[str], pre: str) -> Backend:
    patterns = _PATTERNS.get(pre)
    if patterns is None:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {pre!r}; Penstock converts {', '.join(sorted(_PATTERNS))}. "
            "Give the tokenizer of the original checkpoint (a folder with tokenizer.json) instead"
        )
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise TokenizerError(f"tokenizer.ggml.merges holds {merge!r}, which is not a pair")
        pairs.append((left, right))
    backend = Backend(_bpe(vocab, pairs, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> BPE:
    with refusing("the GGUF file's merges and tokens disagree"):
        return BPE(vocab, merges, **options)


def _add_special(backend: Backend, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    special, plain = [], []
    for token, kind in zip(tokens, kinds, strict=True):
        if not token:
            continue
        if kind in (_Kind.CONTROL, _Kind.UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == _Kind.USER_DEFINED:
            plain.append(AddedToken(token, special=False, normalized=False))
    with refusing("the GGUF file's tokenizer.ggml.tokens cannot be used"):
        backend.add_special_tokens(special)
        backend.add_tokens(plain)


def _special_id(fields: _Fields, name: str, vocab_size: int) -> int | None:
    value = fields.scalar(name, int, -1)
    if value >= vocab_size:
        raise TokenizerError(
            f"tokenizer.ggml.{name} is {value}, outside the vocabulary of {vocab_size}"
        )
    return value if value >= 0 else None


class _Fields:
    """Typed access to ``tokenizer.ggml.*``."""

    def __init__(self, metadata: dict[str, GgufValue]) -> None:
        self._metadata = metadata

    def scalar(self, name: str, kind: type[_T], default: _T) -> _T:
        value = self._metadata.get("tokenizer.ggml." + name, default)
        if type(value) is not kind:
            raise TokenizerError(
                f"tokenizer.ggml.{name} is {value!r:.100}, not of type {kind.__name__}"
            )
        return value

    def array(self, name: str, kind: type[_T], size: int | None = None) -> list[_T]:
        """Empty if absent. Raises TokenizerError unless there are ``size`` values of ``kind``."""
        values = self._metadata.get("tokenizer.ggml." + name, [])
        if isinstance(values, Numbers):
            right = values.kind is kind or not values
        else:
            right = isinstance(values, list) and all(type(value) is kind for value in values)
        if not right:
            raise TokenizerError(f"tokenizer.ggml.{name} is not an array of {kind.__name__}")
        assert isinstance(values, (list, Numbers))
        if len(values) and size is not None and len(values) != size:
            raise TokenizerError(
                f"tokenizer.ggml.{name} has {len(values)} entries for {size} tokens"
            )
        listed: list[Any] = list(values)
        return listed
