"""Turns documents into batches: one stream of tokens, cut into windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.errors import ConfigError
from penstock.train.data import Sample

Stream = NDArray[np.int32]


def token_stream(samples: list[Sample], vocab: int, seed: int) -> Stream:
    """Concatenate all documents in an order that ``seed`` decides.

    Raises ConfigError for a token that the model has no logits for.
    """
    order = np.random.default_rng(seed).permutation(len(samples))
    stream = np.concatenate([np.asarray(samples[i].token_ids, dtype=np.int32) for i in order])
    if len(stream) and int(stream.max()) >= vocab:
        raise ConfigError(
            f"the tokenizer gives token {int(stream.max())}, but the model has {vocab} tokens; "
            "name the tokenizer that it was trained with"
        )
    return stream


def batches(
    stream: Stream, length: int, count: int, generator: np.random.Generator
) -> Iterator[Tensor]:
    """Endless int64 ``[count, length]`` windows, cut elsewhere and shuffled in each pass."""
    while True:
        shift = int(generator.integers(min(length, len(stream) - length * count + 1)))
        starts = np.arange(shift, len(stream) - length + 1, length)
        generator.shuffle(starts)
        for i in range(0, len(starts) - count + 1, count):
            yield _windows(stream, starts[i : i + count], length)


def in_turn(stream: Stream, length: int, count: int, most: int) -> Iterator[Tensor]:
    """Return at most ``most`` windows spread over the stream, int64 ``[up to count, length]``
    each."""
    starts = np.arange(0, len(stream) - length + 1, length)
    if len(starts) > most:
        starts = starts[np.linspace(0, len(starts) - 1, most).astype(np.int64)]
    for i in range(0, len(starts), count):
        yield _windows(stream, starts[i : i + count], length)


def most_frequent(stream: Stream, size: int, vocab: int) -> Tensor:
    """The ``size`` most frequent tokens, int64, ascending; unseen ones by id where that is few."""
    counts = Counter(dict(enumerate(np.bincount(stream, minlength=vocab).tolist())))
    chosen = [token for token, _ in counts.most_common(size)]
    return torch.tensor(sorted(chosen), dtype=torch.int64)


def check_length(stream: Stream, needed: int, what: str) -> None:
    """Raises ConfigError if ``stream`` has fewer than ``needed`` tokens."""
    if len(stream) < needed:
        raise ConfigError(
            f"{what} has {len(stream)} tokens, and {needed} are needed; bring more text, or "
            "lower --context or --batch-tokens"
        )


def _windows(stream: Stream, starts: NDArray[np.int64], length: int) -> Tensor:
    rows = np.stack([stream[start : start + length] for start in starts])
    return torch.from_numpy(rows.astype(np.int64))
