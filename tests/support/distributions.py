"""A model of a few tokens, and how well what was drawn agrees with its distribution."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np

from penstock.interface.sampler import NewSequence
from penstock.sampling.params import SamplingParams
from penstock.sampling.sequence import SequenceSampler
from support.rejection import processed_weights

VOCAB = 7
PARAMS = SamplingParams(temperature=0.9, top_p=0.93, repetition_penalty=1.3, frequency_penalty=0.4)
PROMPT = [2, 5]


class Model:
    """Logits by the last token; processed weights by the path, since penalties depend on it."""

    def __init__(self, seed: int, params: SamplingParams, spread: float = 1.5) -> None:
        rng = np.random.default_rng(seed)
        self.logits = rng.standard_normal((VOCAB, VOCAB)).astype(np.float32) * np.float32(spread)
        self._params = params
        self._known: dict[tuple[int, ...], list[int]] = {}

    def weights(self, path: list[int]) -> list[int]:
        key = tuple(path)
        if key not in self._known:
            state = SequenceSampler(NewSequence(self._params, 0, PROMPT, VOCAB))
            for token in path:
                state.append(token)
            row = self.logits[path[-1] if path else PROMPT[-1]]
            self._known[key] = processed_weights(row, state).tolist()
        return self._known[key]

    def likelihoods(self, length: int) -> dict[tuple[int, ...], float]:
        result = {}
        for path in itertools.product(range(VOCAB), repeat=length):
            p = 1.0
            for i, token in enumerate(path):
                weights = self.weights(list(path[:i]))
                p *= weights[token] / sum(weights)
            result[path] = p
        return result


def chi_square(seen: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """The probability of a fit as bad as this or worse (Wilson and Hilferty's approximation)."""
    samples = sum(seen.values())
    assert not [path for path in seen if expected[path] == 0.0], "what cannot be was drawn"
    cells = {path: p for path, p in expected.items() if p * samples >= 5}
    rest = samples * (1 - sum(cells.values()))
    statistic = sum((seen[c] - p * samples) ** 2 / (p * samples) for c, p in cells.items())
    if rest >= 5:
        statistic += (samples - sum(seen[c] for c in cells) - rest) ** 2 / rest
    freedom = len(cells) - (rest < 5)
    z = ((statistic / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))
    return math.erfc(z / math.sqrt(2)) / 2
