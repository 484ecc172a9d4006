"""The text that a model reads before its matrices are rounded."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from penstock.tokenizer.tokenizer import Tokenizer

MAX_TOKENS: Final = 1024
"""The text is shorter, but with tokenizers that know few of its words."""

_STRIDE: Final = 0x9E3779B1
"""A prime near the golden ratio of 32 bits, whose multiples are spread evenly."""

_METHOD: Final = 2
"""Changes with what is done with the text, so that engine artifacts of before are not taken."""


def calibration_text() -> str:
    """Return prose, code, tables, turns of a chat and a few words of other languages."""
    return Path(__file__).with_name("calibration.txt").read_text(encoding="utf-8")


def calibration_digest() -> str:
    """Return what identifies the text and what is done with it."""
    text = calibration_text().encode()
    return hashlib.blake2b(text, digest_size=8, salt=_METHOD.to_bytes(8)).hexdigest()


def calibration_tokens(tokenizer: Tokenizer, most: int) -> list[int]:
    """Return the first tokens of the text, behind those that a model expects; ``most`` or fewer."""
    text = tokenizer.encode(calibration_text(), add_special_tokens=False, parse_special=False)
    return [*tokenizer.settings.prefix_ids, *text][: min(most, MAX_TOKENS)]


def spread_tokens(vocab_size: int, most: int) -> list[int]:
    """Return tokens from all over a vocabulary, for models whose texts nobody knows."""
    return [i * _STRIDE % vocab_size for i in range(1, min(most, MAX_TOKENS) + 1)]
