"""How well a model predicts a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.evaluate.distribution import token_losses
from penstock.evaluate.text_model import PIECE, TextModel
from penstock.evaluate.windows import OnWindow, Window


@dataclass(frozen=True)
class Perplexity:
    """The result of :func:`perplexity`."""

    perplexity: float
    """The exponential of the mean loss, which is in nats a token."""
    standard_error: float
    """That of the perplexity, as if tokens were independent."""
    bits_per_byte: float
    """Bits that the tokens that count cost, for each byte of UTF-8 that they stand for: this
    compares models with different tokenizers."""
    tokens: int
    """Number of tokens that count."""
    windows: int

    @classmethod
    def of(cls, losses: NDArray[np.float64], windows: int, num_bytes: int) -> Perplexity:
        """Return the figures of tokens with these losses, in nats."""
        mean = float(losses.mean())
        value = math.exp(mean) if mean < 700 else math.inf
        error = float(losses.std(ddof=1)) / math.sqrt(len(losses)) if len(losses) > 1 else math.nan
        bits = float(losses.sum()) / math.log(2) / max(num_bytes, 1)
        return cls(value, value * error, bits, len(losses), windows)


def perplexity(
    model: TextModel, windows: Sequence[Window], progress: OnWindow = lambda done, value: None
) -> Perplexity:
    """Run ``model`` over the windows; ``progress`` is told the perplexity. Raises ModelError where
    the logits are not numbers."""
    losses: list[NDArray[np.float64]] = []
    for done, window in enumerate(windows, 1):
        for logits, targets in zip(model.logits(window), pieces(window), strict=True):
            losses.append(token_losses(logits, targets))
        progress(done, float(np.exp(np.concatenate(losses).mean())))
    return Perplexity.of(np.concatenate(losses), len(windows), num_bytes(model, windows))


def pieces(window: Window) -> Iterator[Sequence[int]]:
    """The targets of each piece of a window's logits."""
    for first in range(0, len(window.targets), PIECE):
        yield window.targets[first : first + PIECE]


def num_bytes(model: TextModel, windows: Sequence[Window]) -> int:
    """Bytes that the tokens that count stand for, each by itself: a character may lie in two
    windows."""
    pieces = model.tokenizer.pieces
    return sum(len(pieces[token]) for window in windows for token in window.targets)
