"""The tokens that a training sees: one shuffled stream, cut into windows anew with each pass."""

from __future__ import annotations

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from corpus import Document

# Of the newlines that are one token with the indentation behind them, as many are cut in two.
CUT_SHARE = 0.06
# Documents: what is known of a token as it is encoded takes a hundred times its id.
ENCODED_AT_ONCE = 256


def token_stream(tokenizer: Tokenizer, documents: list[Document], seed: int) -> np.ndarray:
    """All documents in one shuffled int32 stream, each after its ``<|endoftext|>``.

    A newline and the indentation behind it are one token, so a text that ends in a newline, as
    prompts often do, ends in a token that the corpus has only in front of an unindented line or of
    the end. A model that saw nothing else ends there. Hence a few are cut behind the newline, and
    documents lose their last ones.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(documents))
    pieces = []
    for part in np.array_split(order, -(-len(order) // ENCODED_AT_ONCE)):
        encoded = tokenizer.encode_batch([documents[i].text.rstrip("\n") for i in part])
        pieces += [np.asarray(e.ids, dtype=np.int32) for e in encoded]
    stream = np.concatenate(pieces)
    return cut_newlines(stream, cuts(tokenizer), generator)


def cuts(tokenizer: Tokenizer) -> dict[int, list[int]]:
    """What each token of newlines and spaces is when it is cut behind its last newline."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    found = {}
    for token in vocabulary.values():
        text = tokenizer.decode([token])
        spaces = text.lstrip("\n")
        if text != spaces and spaces and not spaces.strip(" "):
            newlines = text[: len(text) - len(spaces)]
            halves = (tokenizer.encode(t, add_special_tokens=False) for t in (newlines, spaces))
            found[token] = [id for half in halves for id in half.ids]
    return found


def cut_newlines(
    stream: np.ndarray, halves: dict[int, list[int]], generator: np.random.Generator
) -> np.ndarray:
    """The stream, a share of its tokens that are in ``halves`` replaced by those halves."""
    chosen = np.isin(stream, list(halves)) & (generator.random(len(stream)) < CUT_SHARE)
    pieces, start = [], 0
    for place in np.flatnonzero(chosen):
        pieces.append(stream[start:place])
        pieces.append(np.asarray(halves[int(stream[place])], dtype=np.int32))
        start = place + 1
    return np.concatenate([*pieces, stream[start:]])


class Windows:
    """Endless windows of a stream, in an order that depends on seed, length and position alone.

    ``position`` counts windows from the beginning of training; setting it continues an earlier run.
    Each pass begins at another shift, so that a window's ends differ from pass to pass.
    """

    def __init__(self, stream: np.ndarray, length: int, seed: int) -> None:
        self.position = 0
        self._stream = stream
        self._length = length
        self._seed = seed
        self._per_pass = (len(stream) - 1) // length - 1
        self._starts = np.empty(0, dtype=np.int64)
        self._pass = -1
        if self._per_pass < 1:
            raise ValueError(f"{len(stream)} tokens are too few for windows of {length}")

    def take(self, count: int) -> Tensor:
        """The next ``[count, length + 1]`` int64 windows."""
        return torch.from_numpy(np.stack([self._next() for _ in range(count)]).astype(np.int64))

    def _next(self) -> np.ndarray:
        number, place = divmod(self.position, self._per_pass)
        if number != self._pass:
            generator = np.random.default_rng([self._seed, self._length, number])
            shift = int(generator.integers(self._length))
            order = generator.permutation(self._per_pass)
            self._starts, self._pass = shift + self._length * order, number
        self.position += 1
        start = self._starts[place]
        return self._stream[start : start + self._length + 1]
