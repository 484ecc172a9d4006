"""GGUF files with nothing but metadata, and a vocabulary by formula that shows where words end."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from penstock.tokenizer.pieces import byte_alphabet

_SMALL = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.block_count": 1,
    "llama.feed_forward_length": 8,
    "llama.attention.head_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 8,
}


def write_metadata(path: Path, pairs: Mapping[str, Any], **ggml: Any) -> Path:
    """A file with these pairs, ``ggml`` below ``tokenizer.ggml``, and what llama.cpp wants."""
    whole = {**_SMALL, **pairs, **{f"tokenizer.ggml.{key}": value for key, value in ggml.items()}}
    body = b"".join(_string(key) + _value(value) for key, value in whole.items())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(whole)) + body)
    return path


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    head = struct.pack("<IQ", {str: 8, int: 5, float: 6}[type(value[0])], len(value))
    if isinstance(value[0], str):
        return struct.pack("<I", 9) + head + b"".join(map(_string, value))
    code = "i" if isinstance(value[0], int) else "f"
    return struct.pack("<I", 9) + head + struct.pack(f"<{len(value)}{code}", *value)


def digest(ids: Sequence[int]) -> str:
    """Eight characters that stand for token ids."""
    return hashlib.blake2b(json.dumps(list(ids)).encode(), digest_size=4).hexdigest()


def word_vocabulary(pre: str) -> dict[str, Any]:
    """The ``tokenizer.ggml`` fields of a vocabulary for this pre-tokenizer."""
    text = pre in ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
    vocabulary: dict[str, Any] = {**(spelled_out() if text else pair_vocabulary())}
    return {"model": "gpt2", "pre": pre, "bos_token_id": 2, "eos_token_id": 1, **vocabulary}


@cache
def pair_vocabulary() -> dict[str, list[str]]:
    """Every byte and every pair of bytes, the pairs ranked without an order: which bytes of a word
    pair up depends on all of them, so tokens show where it begins and ends."""
    alphabet = byte_alphabet()
    ranked = sorted(
        ((a * 7919 + b * 104729 + a * b * 31) % 65537, a, b) for a in range(256) for b in range(256)
    )
    pairs = [(alphabet[a], alphabet[b]) for _, a, b in ranked]
    return {
        "tokens": [*alphabet, *(a + b for a, b in pairs)],
        "merges": [f"{a} {b}" for a, b in pairs],
    }


def spelled_out() -> dict[str, list[Any]]:
    """A small vocabulary as Gemma 4 has it: text with U+2581 for spaces, and bytes for the rest."""
    letters = "abcdefgh\u2581\n.1é"
    pairs = [(a, b) for a in letters for b in letters if (a == "\n") == (b == "\n")]
    tokens = ["<pad>", "<eos>", "<bos>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = [*letters, *(a + b for a, b in pairs)]
    return {
        "tokens": tokens + words,
        "token_type": [3] * 3 + [6] * 256 + [1] * len(words),
        "merges": [f"{a} {b}" for a, b in pairs],
    }
