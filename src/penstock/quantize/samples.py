"""The texts that a model reads while it is quantized."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.tokenizer.tokenizer import Tokenizer

HELD_OUT: Final = 0.1
"""The part of a text, its end, that is not trained on."""
_HELD_OUT_TOKENS: Final = 4096
_STEP_TOKENS: Final = 1024


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
    tokenizer: Tokenizer,
    text: str,
    name: str,
    count: int,
    length: int,
    seed: int,
    most: int,
    held_out: float = 0.0,
) -> Samples:
    """``count`` windows of ``length`` tokens, with the tokens that a model expects first.

    ``most`` is the number of positions that the model has. Windows may overlap where the text has
    not so many tokens, and have none of the last ``held_out`` part of it. Raises ConfigError where
    it has fewer than two windows, or a window is too long for the model.
    """
    if length > most:
        raise ConfigError(
            f"--sample-length {length}: the model has {most} positions; take at most so many"
        )
    prefix: Sequence[int] = tokenizer.settings.prefix_ids
    own = length - len(prefix)
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    ids = ids[: _end(len(ids), held_out)]
    _require_own(own, length)
    if len(ids) < 2 * own:
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


def _require_own(own: int, length: int) -> None:
    """Raise ConfigError where nothing of a sample is left for the text."""
    if own < 1:
        raise ConfigError(
            f"--sample-length {length}: a sample begins with {length - own} tokens that the model "
            "expects first, and has none of the text; take more"
        )


def _end(count: int, held_out: float) -> int:
    """Tokens of a text of ``count`` without the last ``held_out`` part."""
    return count - math.ceil(count * held_out)


@dataclass(frozen=True)
class TrainingText:
    """A text whose end is held out, as token ids: int64, of what is trained on, and windows of what
    is not. Windows have ``length`` tokens, ``prefix`` first."""

    ids: NDArray[np.int64]
    held_out: tuple[tuple[int, ...], ...]
    prefix: tuple[int, ...]
    length: int
    seed: int
    source: str
    """What it is of, for the record."""

    def windows(self, step: int) -> list[tuple[int, ...]]:
        """What a step reads, by its number from 0: windows at random places, which the seed and the
        number decide, of at least 1,024 tokens together."""
        own = self.length - len(self.prefix)
        draws = np.random.default_rng([self.seed, step])
        count = max(1, _STEP_TOKENS // self.length)
        starts = draws.integers(0, len(self.ids) - own + 1, count).tolist()
        return [(*self.prefix, *self.ids[start : start + own].tolist()) for start in starts]


def training_text(
    tokenizer: Tokenizer, text: str, name: str, length: int, seed: int, most: int
) -> TrainingText:
    """A text for training: its last tenth is held out, of which as many windows are taken as have
    at most 4,096 tokens together.

    ``most`` is the number of positions that the model has. Raises ConfigError where the last tenth
    has no window, or a window is too long for the model.
    """
    if length > most:
        raise ConfigError(
            f"--sample-length {length}: the model has {most} positions; take at most so many"
        )
    prefix = tuple(tokenizer.settings.prefix_ids)
    own = length - len(prefix)
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    end = _end(len(ids), HELD_OUT)
    behind = ids[end:]
    _require_own(own, length)
    if len(behind) < own:
        raise ConfigError(
            f"--calibration {name} has {len(ids)} tokens, of which --fine-tune holds out a tenth, "
            f"less than a sample of {length}; give a longer text, or a smaller --sample-length"
        )
    count = min(len(behind) // own, max(1, _HELD_OUT_TOKENS // length))
    starts = [number * (len(behind) - own) // max(1, count - 1) for number in range(count)]
    held_out = tuple((*prefix, *behind[start : start + own]) for start in starts)
    digest = hashlib.sha256(text.encode()).hexdigest()
    source = (
        f"windows of {length} tokens of a text of {len(ids)} tokens with SHA-256 {digest}, seed "
        f"{seed}; {count} windows of its last {len(behind)} tokens are held out"
    )
    return TrainingText(np.array(ids[:end], np.int64), held_out, prefix, length, seed, source)
