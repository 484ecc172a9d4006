"""Reads SentencePiece's ``tokenizer.model``: pieces, their scores and kinds.

The file is a message of protocol buffers, of which these fields are read (the names are those of
``sentencepiece_model.proto`` in https://github.com/google/sentencepiece): ``pieces`` (1), each with
``piece`` (1), ``score`` (2, a float) and ``type`` (3); ``trainer_spec`` (2) with ``model_type``
(3), ``treat_whitespace_as_suffix`` (24), ``byte_fallback`` (35), ``unk_id``, ``bos_id``, ``eos_id``
and ``pad_id`` (40 to 43); ``normalizer_spec`` (3) with ``precompiled_charsmap`` (2),
``add_dummy_prefix`` (3), ``remove_extra_whitespaces`` (4) and ``escape_whitespaces`` (5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import TokenizerError
from penstock.gguf.special_tokens import Kind
from penstock.regular_file import read_regular

_BYTE_PAIRS: Final = 2
_MODEL_TYPES: Final = {1: "unigram", 3: "word", 4: "char"}
_MOST_PIECES: Final = 1 << 22

_Value = int | bytes


@dataclass(frozen=True)
class SentencePieceModel:
    """A vocabulary of byte pairs: the adjacent pair whose union scores highest merges first."""

    pieces: tuple[str, ...]
    """By token id, spaces spelled U+2581."""
    scores: tuple[float, ...]
    kinds: tuple[int, ...]
    """Numbers of :class:`~penstock.gguf.special_tokens.Kind`, which are SentencePiece's own."""
    space_prefix: bool
    """Whether a space is put before a text."""
    roles: Mapping[str, int]
    """The ids of the special tokens ``unk``, ``bos``, ``eos`` and ``pad``, of those that it has."""


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a ``tokenizer.model``. Raises TokenizerError, naming the file, where it cannot be read,
    is corrupt, or cuts texts in a way that Penstock does not."""
    try:
        data = read_regular(path)
    except OSError as error:
        raise TokenizerError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _model(data, path)
    except (ValueError, struct.error, UnicodeDecodeError) as error:
        raise TokenizerError(
            f"{path} is no SentencePiece model, or corrupt: {error}; download it again"
        ) from error


def _model(data: bytes, path: Path) -> SentencePieceModel:
    pieces: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, _Value] = {}
    normalizer: dict[int, _Value] = {}
    for number, value in _fields(data):
        match number, value:
            case 1, bytes():
                piece = dict(_fields(value))
                pieces.append(_bytes(piece.get(1, b"")).decode())
                scores.append(_float(piece.get(2, bytes(4))))
                kinds.append(_integer(piece.get(3, int(Kind.NORMAL))))
                if len(pieces) > _MOST_PIECES:
                    raise ValueError(f"more than {_MOST_PIECES} pieces")
            case 2, bytes():
                trainer |= dict(_fields(value))
            case 3, bytes():
                normalizer |= dict(_fields(value))
            case _:
                pass  # tests of the model itself, and extensions
    if not pieces:
        raise ValueError("it has no pieces")
    if not set(kinds) <= set(Kind):
        raise ValueError("a piece is of a kind that there is not")
    _require_supported(trainer, normalizer, path)
    numbers = {"unk": (40, 0), "bos": (41, 1), "eos": (42, 2), "pad": (43, -1)}
    ids = {role: _signed(trainer.get(number, usual)) for role, (number, usual) in numbers.items()}
    return SentencePieceModel(
        tuple(pieces),
        tuple(scores),
        tuple(kinds),
        bool(normalizer.get(3, 1)),
        {role: token for role, token in ids.items() if 0 <= token < len(pieces)},
    )


def _require_supported(
    trainer: Mapping[int, _Value], normalizer: Mapping[int, _Value], path: Path
) -> None:
    kind = _integer(trainer.get(3, 1))
    problem = None
    if kind != _BYTE_PAIRS:
        problem = f"is a model of type {_MODEL_TYPES.get(kind, kind)}, and Penstock reads bpe alone"
    elif not trainer.get(35, 0):
        problem = "has pieces that are not backed by bytes (byte_fallback)"
    elif trainer.get(24, 0):
        problem = "puts spaces behind words (treat_whitespace_as_suffix)"
    elif normalizer.get(2, b""):
        problem = "normalizes texts (precompiled_charsmap)"
    elif normalizer.get(4, 1):
        problem = "takes spaces out of texts (remove_extra_whitespaces)"
    elif not normalizer.get(5, 1):
        problem = "does not spell spaces as U+2581 (escape_whitespaces)"
    if problem is not None:
        raise TokenizerError(
            f"{path} {problem}; convert it once with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )


def _fields(data: bytes) -> Iterator[tuple[int, _Value]]:
    """The fields of a message by number, in their order: numbers as they are, others as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field of wire type {wire}")
        if size > len(data) - at:
            raise ValueError("it ends within a field")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")


def _bytes(value: _Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where there should be text")
    return value


def _integer(value: _Value) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where there should be a number")
    return value


def _signed(value: _Value) -> int:
    number = _integer(value)
    return number - (1 << 64) if number >> 63 else number


def _float(value: _Value) -> float:
    (number,) = struct.unpack("<f", _bytes(value))
    return float(number)
