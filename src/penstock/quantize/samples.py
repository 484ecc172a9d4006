"""The texts that a model reads while it is quantized."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import ConfigError
from penstock.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Samples:
    """Windows of one text, at random places, all of the same number of tokens."""

    tokens: tuple[tuple[int, ...], ...]
    source: str
    """What they are of, for the record."""

    @property
    def length(self) -> int:
        return len(self.tokens[0])


def draw(
    tokenizer: Tokenizer, text: str, name: str, count: int, length: int, seed: int, most: int
) -> Samples:
    """``count`` windows of ``length`` tokens, with the tokens that a model expects first.

    ``most`` is the number of positions that the model has. Windows may overlap where the text has
    not so many tokens. Raises ConfigError where it has fewer than two windows, or a window is too
    long for the model.
    """
    if length > most:
        raise ConfigError(
            f"--sample-length {length}: the model has {most} positions; take at most so many"
        )
    prefix: Sequence[int] = tokenizer.settings.prefix_ids
    own = length - len(prefix)
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    if own < 1 or len(ids) < 2 * own:
        raise ConfigError(
            f"--calibration {name} has {len(ids)} tokens, and samples of {length} want twice that "
            "at least; give a longer text, or a smaller --sample-length"
        )
    starts = np.random.default_rng(seed).integers(0, len(ids) - own + 1, count)
    windows = tuple((*prefix, *ids[start : start + own]) for start in starts.tolist())
    digest = hashlib.sha256(text.encode()).hexdigest()
    of_ids = hashlib.sha256(np.array(windows, np.int64).tobytes()).hexdigest()
    source = (
        f"{count} windows of {length} tokens, drawn with seed {seed}, of a text of {len(ids)} "
        f"tokens with SHA-256 {digest}; SHA-256 of their ids {of_ids}"
    )
    return Samples(windows, source)
