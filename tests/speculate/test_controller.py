"""Lengths of drafts against the formula, on simulated clocks."""

from __future__ import annotations

import random

import pytest

from penstock.engine.messages import EngineRequest
from penstock.engine.request import Sequence, make_sequences
from penstock.sampling.params import SamplingParams
from penstock.speculate.acceptance import Acceptance
from penstock.speculate.controller import Controller
from penstock.speculate.costs import StepCosts


def sequence() -> Sequence:
    return make_sequences(
        EngineRequest(request_id="a", prompt_token_ids=[1], params=SamplingParams()), 0
    )


class World:
    """An engine in which drafts are accepted with ``alpha`` and times are a function of rows."""

    def __init__(self, alpha: float, row: float, draft: float, num_tokens: int = 8) -> None:
        self.alpha, self.row, self.draft = alpha, row, draft
        self.controller = Controller(1, num_tokens)
        self.num_tokens = num_tokens
        self.random = random.Random(1)
        self.seconds = 0.0
        self.tokens = 0
        self.lengths: list[int] = []

    def run(self, steps: int, sequences: list[Sequence]) -> None:
        count = len(sequences)
        for _ in range(steps):
            lengths = [
                self.controller.length(s, 0, self.num_tokens, count, count) for s in sequences
            ]
            rows = count + sum(lengths)
            seconds = 1.0 + self.row * (rows - 1)
            if longest := max(lengths):
                self.controller.drafting_took(count, longest, self.draft * longest)
                self.seconds += self.draft * longest
            self.seconds += seconds
            for each, length in zip(sequences, lengths, strict=True):
                accepted = 0
                while accepted < length and self.random.random() < self.alpha:
                    accepted += 1
                if length:
                    self.controller.verified(each, 0, length, accepted)
                self.tokens += 1 + accepted
            self.controller.step_took(rows, seconds)
            self.lengths += lengths


def best_rate(alpha: float, row: float, draft: float, most: int) -> float:
    """Tokens a second of one sequence with the best constant length, by the formula."""
    return max(
        (1 - alpha ** (k + 1)) / (1 - alpha) / (1 + (row + draft) * k) for k in range(most + 1)
    )


@pytest.mark.parametrize("alpha", [0.6, 0.8, 0.9])
@pytest.mark.parametrize(("row", "draft"), [(0.01, 0.01), (0.05, 0.1), (0.1, 0.0), (0.2, 0.1)])
def test_close_to_the_best_length(alpha: float, row: float, draft: float) -> None:
    world = World(alpha, row, draft)
    world.run(200, [sequence()])
    world.tokens, world.seconds = 0, 0.0
    world.run(4000, [sequence()])
    assert world.tokens / world.seconds > 0.94 * best_rate(alpha, row, draft, 8)


def test_little_to_gain_is_little_lost() -> None:
    # One draft each would bring 13 %, which estimates of acceptance can miss.
    world = World(0.3, 0.05, 0.1)
    world.run(4000, [sequence()])
    assert world.tokens / world.seconds > 0.99


def test_off_where_rows_cost_as_much_as_steps() -> None:
    world = World(0.8, 1.0, 0.0)
    world.run(2000, [sequence()])
    assert world.tokens / world.seconds > 0.98


def test_drafts_that_fail_cost_next_to_nothing() -> None:
    world = World(0.0, 0.1, 0.1)
    world.run(4000, [sequence()])
    assert world.tokens / world.seconds > 0.985
    assert sum(world.lengths) > 0


def test_tried_again_when_it_pays_again() -> None:
    world = World(0.0, 0.02, 0.02)
    one = sequence()
    world.run(1000, [one])
    world.alpha = 0.9
    world.run(1000, [one])
    assert sum(world.lengths[-200:]) / 200 > 4


def test_a_batch_pays_for_its_rows() -> None:
    # 32 rows cost 4.1 times as much as one here: a draft each would cost more than it brings.
    batch = [sequence() for _ in range(32)]
    world = World(0.5, 0.1, 0.0)
    world.run(1000, batch)
    plain = 32 / (1.0 + 0.1 * 31)
    assert world.tokens / world.seconds > 0.98 * plain


def test_sequences_are_told_apart() -> None:
    common = Acceptance(1, 4)
    good, bad = Acceptance(1, 4, common), Acceptance(1, 4, common)
    for _ in range(50):
        good.add(0, 4, 4)
        bad.add(0, 4, 0)
    assert good.rate(0, 0) > 0.85
    assert bad.rate(0, 0) < 0.15
    assert 0.4 < common.rate(0, 0) < 0.6
    assert bad.rate(0, 3) > 0.9  # never tried: what is known of all


def test_costs_between_and_beyond_what_was_measured() -> None:
    costs = StepCosts()
    costs.add(1, 1.0)
    costs.add(1, 9.0)
    assert costs.seconds(3) == 0.0
    assert not costs.knows(1)
    costs.add(1, 8.0)
    assert costs.knows(1)
    assert costs.seconds(5) == 1.0
    for _ in range(3):
        costs.add(5, 2.0)
    assert costs.seconds(3) == pytest.approx(1.5)
    assert costs.seconds(100) == 2.0
    assert costs.age(1) == 3
    for _ in range(100):
        costs.add(1, 3.0)
    assert costs.seconds(1) == pytest.approx(3.0, rel=0.01)


def test_a_step_that_was_held_up_counts_little() -> None:
    costs = StepCosts()
    for _ in range(3):
        costs.add(1, 1.0)
    costs.add(1, 1000.0)
    assert costs.seconds(1) < 1.1
