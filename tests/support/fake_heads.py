"""Heads that draft rightly if and only if they are given what they should be.

They know what the hash model of ``overlap_executor`` will say, and find where they are by the
features of a row; one whose features, token or visible past are not those of one place in a text
drafts nonsense.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.host_executor import HostExecutor
from penstock.interface.step import StepInput, StepResult
from penstock.sampling.reference import NumpySampler
from support.fake_model import Entry, FakeModel, _entry, as_hidden
from support.oracle import Texts


class Place(NamedTuple):
    """A position of a text."""

    text: list[int]
    position: int


class Truth:
    """What the model's hidden state is at every position of texts."""

    def __init__(self, texts: Texts) -> None:
        self._places: dict[int, list[Place]] = {}
        for text in texts.values():
            for position, state in enumerate(self._states(text)):
                self._places.setdefault(state, []).append(Place(text, position))

    def places(self, state: float) -> list[Place]:
        """Where the state is this one: several texts may have the same beginning."""
        return self._places.get(int(state), [])

    def state(self, place: Place) -> int:
        return self._states(place.text)[place.position]

    def _states(self, text: list[int]) -> list[int]:
        entries: list[Entry] = []
        rows = []
        for position, token in enumerate(text):
            entries.append(_entry(entries[-1][2] if entries else 0, token, position))
            rows.append(hash(tuple(entries)))
        return [int(state) for state in as_hidden(rows)[:, 0]]


class _Past(FakeModel):
    def __init__(self, window: int | None) -> None:
        super().__init__(BLOCK_SIZE, windows=(window,))
        self.pasts: list[tuple[Entry, ...]] = []

    def seen(self, entries: tuple[Entry, ...]) -> int:
        self.pasts.append(entries)
        return len(self.pasts) - 1


class FakeEagle(HostExecutor):
    """Features ``[T, 2]``: the target's hidden state, and its own; one of them is 0."""

    def __init__(
        self, truth: Truth, num_blocks: int, vocab: int, window: int | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self._truth = truth
        self._vocab = vocab
        self._model = _Past(window)
        self.rows = self.right = 0

    def run(self, step: StepInput) -> StepResult:
        assert step.features.shape == (step.num_tokens, 2)
        assert (step.features == 0).any(axis=1).all()
        self._model.pasts.clear()
        selected = self._model.run(step)
        logits = np.zeros((len(selected), self._vocab), np.float32)
        hidden = np.zeros((len(selected), 1), np.float32)
        for i, (row, index) in enumerate(zip(step.logit_rows, selected, strict=True)):
            place = self._place(step.features[row].sum(), self._model.pasts[index])
            self.rows += 1
            if place is None:
                continue
            self.right += 1
            logits[i, place.text[place.position + 2]] = 9.0
            hidden[i] = self._truth.state(Place(place.text, place.position + 1))
        return StepResult(logits, logits.argmax(axis=1).astype(np.int32), hidden)

    @cached_property
    def sampler(self) -> NumpySampler:
        return NumpySampler()

    def close(self) -> None: ...

    def _place(self, state: float, past: tuple[Entry, ...]) -> Place | None:
        tokens = [entry[0] for entry in past]
        for place in self._truth.places(state):
            end = place.position + 2
            if place.text[end - len(tokens) : end] == tokens and end < len(place.text):
                return place
        return None


class FakeMedusa(HostExecutor):
    """Three heads; features ``[T, 1]``: the target's hidden state."""

    num_blocks = 1

    def __init__(self, truth: Truth, vocab: int) -> None:
        self._truth = truth
        self._vocab = vocab

    def run(self, step: StepInput) -> StepResult:
        assert step.features.shape == (step.num_tokens, 1)
        heads = [self._logits(step, head) for head in range(3)]
        argmax = heads[0].argmax(axis=1).astype(np.int32)
        return StepResult(heads[0], argmax, None, None, tuple(heads[1:]))

    @cached_property
    def sampler(self) -> NumpySampler:
        return NumpySampler()

    def close(self) -> None: ...

    def _logits(self, step: StepInput, head: int) -> NDArray[np.float32]:
        logits = np.zeros((step.num_tokens, self._vocab), np.float32)
        for row, state in enumerate(step.features[:, 0]):
            for place in self._truth.places(state):
                if place.position + 2 + head < len(place.text):
                    logits[row, place.text[place.position + 2 + head]] = 9.0
        return logits
