"""The general rule of rejection sampling keeps the model's distribution: chains and trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from support.distributions import PARAMS, PROMPT, VOCAB, Model, chi_square
from support.rejection import SampledTree, draw_candidates, verify_node, verify_tree

from penstock.interface.sampler import NewSequence
from penstock.sampling.draws import sequence_key
from penstock.sampling.params import SamplingParams
from penstock.sampling.select import pick
from penstock.sampling.sequence import SequenceSampler

SAMPLES = 5_000
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


@pytest.mark.parametrize("widths", [[1, 1], [3, 2]], ids=["chain", "tree"])
def test_distributed_as_without_drafts(widths: list[int]) -> None:
    model, draft = Model(1, PARAMS), Model(2, PARAMS)
    seen, lengths = outcomes(model, draft.weights, widths, SAMPLES)
    assert chi_square(seen, model.likelihoods(2)) > 1e-4
    assert min(lengths[1], lengths[2], lengths[3]) > SAMPLES / 100


def test_a_draft_that_is_always_right() -> None:
    model = Model(1, PARAMS)
    seen, lengths = outcomes(model, model.weights, [1, 1], SAMPLES)
    assert lengths == {3: SAMPLES}
    assert chi_square(seen, model.likelihoods(2)) > 1e-4


@pytest.mark.parametrize("widths", [[1, 1], [2, 2]], ids=["chain", "tree"])
def test_a_draft_that_is_always_wrong(widths: list[int]) -> None:
    """It drafts what top-p leaves out."""
    model = Model(3, PARAMS, spread=3.0)

    def drafter(path: list[int]) -> list[int]:
        return [int(weight == 0) for weight in model.weights(path)]

    assert sum(drafter([])) >= 2
    seen, lengths = outcomes(model, drafter, widths, SAMPLES)
    assert lengths == {1: SAMPLES}
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
        state = SequenceSampler(NewSequence(PARAMS, key, PROMPT, VOCAB))
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
