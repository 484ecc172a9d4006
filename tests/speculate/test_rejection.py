"""Distributions: outputs through the verifier against the model's own probabilities."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from penstock.sampling.draws import sequence_key
from penstock.sampling.params import SamplingParams
from penstock.sampling.select import pick
from penstock.sampling.sequence import SequenceSampler
from penstock.speculate.rejection import (
    SampledTree,
    draw_candidates,
    processed_weights,
    verify_node,
    verify_tree,
)

VOCAB = 7
COUNTS = pytest.mark.parametrize("samples", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
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
            state = SequenceSampler(self._params, 0, PROMPT, VOCAB)
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


Drafter = Callable[[list[int]], list[int]]


def grow(drafter: Drafter, widths: list[int], key: int) -> SampledTree:
    """A tree of ``widths[d]`` candidates at each node of depth d."""
    tree = SampledTree([], [], [drafter([])])
    level: list[tuple[int, list[int]]] = [(-1, [])]
    for depth, width in enumerate(widths):
        below = []
        for parent, path in level:
            q = tree.drawn_from[parent + 1]
            for token in draw_candidates(q, width, key, depth):
                node = len(tree.token_ids)
                tree.token_ids.append(token)
                tree.parents.append(parent)
                tree.drawn_from.append(drafter([*path, token]))
                below.append((node, [*path, token]))
        level = below
    return tree


def outcomes(
    model: Model, drafter: Drafter, widths: list[int], samples: int
) -> tuple[Counter[tuple[int, ...]], Counter[int]]:
    """First two tokens, and how many each step brought."""
    seen: Counter[tuple[int, ...]] = Counter()
    lengths: Counter[int] = Counter()
    for index in range(samples):
        key = sequence_key(7, index)
        output = verify_tree(grow(drafter, widths, key), model.weights, key, 0)
        lengths[len(output)] += 1
        while len(output) < 2:
            output.append(verify_node(model.weights(output), [], [], key, len(output)))
        seen[tuple(output[:2])] += 1
    return seen, lengths


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


@COUNTS
@pytest.mark.parametrize("widths", [[1, 1], [3, 2]], ids=["chain", "tree"])
def test_distributed_as_without_drafts(widths: list[int], samples: int) -> None:
    model, draft = Model(1, PARAMS), Model(2, PARAMS)
    seen, lengths = outcomes(model, draft.weights, widths, samples)
    assert chi_square(seen, model.likelihoods(2)) > 1e-4
    assert min(lengths[1], lengths[2], lengths[3]) > samples / 100


@COUNTS
def test_a_draft_that_is_always_right(samples: int) -> None:
    model = Model(1, PARAMS)
    seen, lengths = outcomes(model, model.weights, [1, 1], samples)
    assert lengths == {3: samples}
    assert chi_square(seen, model.likelihoods(2)) > 1e-4


@COUNTS
@pytest.mark.parametrize("widths", [[1, 1], [2, 2]], ids=["chain", "tree"])
def test_a_draft_that_is_always_wrong(widths: list[int], samples: int) -> None:
    """It drafts what top-p leaves out."""
    model = Model(3, PARAMS, spread=3.0)

    def drafter(path: list[int]) -> list[int]:
        return [int(weight == 0) for weight in model.weights(path)]

    assert sum(drafter([])) >= 2
    seen, lengths = outcomes(model, drafter, widths, samples)
    assert lengths == {1: samples}
    assert chi_square(seen, model.likelihoods(2)) > 1e-4


def test_a_wrong_rule_would_be_noticed() -> None:
    """Accepting with p instead of p / q skews what comes, and the test sees it."""
    model, draft = Model(1, PARAMS), Model(2, PARAMS)
    seen: Counter[tuple[int, ...]] = Counter()
    for index in range(20_000):
        key = sequence_key(7, index)
        p, q = model.weights([]), draft.weights([])
        flat = [1] * VOCAB
        (token,) = draw_candidates(q, 1, key, 0)
        seen[(verify_node(p, flat, [token], key, 0),)] += 1
    assert chi_square(seen, model.likelihoods(1)) < 1e-9


def test_without_candidates_it_is_the_draw_of_plain_decoding() -> None:
    model = Model(1, PARAMS)
    for index in range(50):
        key = sequence_key(3, index)
        state = SequenceSampler(PARAMS, key, PROMPT, VOCAB)
        weights = model.weights([])
        expected = pick(np.array(weights), state.draw())
        assert verify_tree(SampledTree([], [], [[]]), model.weights, key, 0) == [expected]


def test_greedy_follows_the_child_that_is_the_largest() -> None:
    model = Model(1, SamplingParams(temperature=0))
    first = int(np.argmax(model.weights([])))
    second = int(np.argmax(model.weights([first])))
    third = int(np.argmax(model.weights([first, second])))
    wrong = (first + 1) % VOCAB
    flat = [1] * VOCAB
    tree = SampledTree([wrong, first, wrong, second], [-1, -1, 0, 1], [flat] * 5)
    assert verify_tree(tree, model.weights, 1, 0) == [first, second, third]


def test_candidates_do_not_repeat_and_end() -> None:
    assert sorted(draw_candidates([3, 0, 1, 5], 9, 4, 0)) == [0, 2, 3]
