from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.speculate.loss_budget import LossBudget


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-3.0, 3.0), st.integers(1, 400), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_no_more_is_lost_than_is_allowed(
    phases: list[tuple[float, int, bool]], alone: bool
) -> None:
    """Whatever drafts save or cost, for however long, and whatever requests arrive."""
    budget = LossBudget(alone)
    earned = allowed = most = 0.0
    for saved, steps, arrivals in phases:
        for _ in range(steps):
            allowed += 0.015 if alone else 0.008
            if budget.is_open:
                budget.draft_step(saved, 0.0)
                earned += saved
            else:
                budget.plain_step()
                if arrivals:
                    budget.arrival(0.0)
            assert earned > -(8.0 + allowed + 3.0)
            # From whenever one looks: of what was saved before, little may be lost again.
            most = max(most, earned + allowed)
            assert earned + allowed > most - (8.0 + 16.0 + 3.0) - 1e-6


def drafted_steps(budget: LossBudget, saved: float, steps: int) -> int:
    drafted = 0
    for _ in range(steps):
        if budget.is_open:
            budget.draft_step(saved, 0.0)
            drafted += 1
        else:
            budget.plain_step()
    return drafted


@pytest.mark.parametrize("saved", [0.05, 0.5])
def test_what_pays_goes_on(saved: float) -> None:
    assert drafted_steps(LossBudget(True), saved, 5000) > 4700


def test_what_fails_is_tried_again() -> None:
    budget = LossBudget(True)
    assert 0 < drafted_steps(budget, -0.5, 5000) < 200
    assert 0 < drafted_steps(budget, -0.5, 5000) < 180
    assert drafted_steps(budget, 0.5, 5000) > 3500


def test_reading_is_paid_for_by_and_by_or_at_the_end() -> None:
    budget = LossBudget(True)
    budget.draft_step(0.0, 4.0)
    assert budget.balance == pytest.approx(8.0 - 4.0 / 32, abs=0.02)
    while budget.is_open:
        budget.idle()
    assert budget.balance == pytest.approx(4.0, abs=0.02)


def test_a_price_that_cannot_be_paid_is_not() -> None:
    budget = LossBudget(True)
    for _ in range(4):
        budget.idle()
    budget.arrival(10.0)
    assert not budget.is_open
    budget.arrival(2.0)
    assert budget.is_open


def test_who_arrives_is_drafted_for_only_if_that_is_believed_to_pay() -> None:
    budget = LossBudget(True)
    for _ in range(4):
        budget.idle()
    budget.arrival(0.0)
    assert budget.is_open
    assert not budget.trial_steps
    budget.idle()
    assert not budget.is_open


def test_an_overdrawn_budget_waits_until_it_can_pay_for_a_trial() -> None:
    budget = LossBudget(True)
    while budget.is_open:
        budget.draft_step(-2.0, 0.0)
    assert budget.balance < 0.0
    waited = 1
    while not budget.plain_step():
        waited += 1
    assert budget.balance >= 5.0  # what the last one cost, as far as it is waited for
    assert waited * 0.015 == pytest.approx(5.0 + 2.0, abs=2.5)
    assert budget.trial_steps == 4


def test_a_budget_that_is_half_empty_is_low() -> None:
    budget = LossBudget(True)
    assert budget.is_low
    budget.draft_step(20.0, 0.0)
    assert not budget.is_low
    for _ in range(6):
        budget.draft_step(-2.0, 0.0)
    assert not budget.is_low
    budget.draft_step(-2.0, 0.0)
    assert budget.is_low
