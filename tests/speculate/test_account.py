from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.speculate.account import Account


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-3.0, 3.0), st.integers(1, 400), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 7),
)
def test_no_more_is_lost_than_is_allowed(phases: list[tuple[float, int, bool]], width: int) -> None:
    """Whatever drafts save or cost, for however long, and whoever arrives."""
    account = Account(width)
    earned = allowed = 0.0
    for saved, steps, arrivals in phases:
        for _ in range(steps):
            allowed += 0.015 if width == 1 else 0.008
            if account.drafts:
                account.drafted(saved, 0.0, 1.0 + saved / 4.0)
                earned += saved
            else:
                account.plain(1, 0.0, True)
                if arrivals:
                    account.arrived(1, 0.0)
            assert earned > -(8.0 + allowed + 3.0)


def drafted_steps(account: Account, saved: float, steps: int) -> int:
    drafted = 0
    for _ in range(steps):
        if account.drafts:
            account.drafted(saved, 0.0, 1.0 + saved)
            drafted += 1
        else:
            account.plain(1, 0.0, True)
    return drafted


@pytest.mark.parametrize("saved", [0.05, 0.5])
def test_what_pays_goes_on(saved: float) -> None:
    assert drafted_steps(Account(1), saved, 5000) > 4700


def test_what_fails_is_tried_again() -> None:
    account = Account(1)
    assert 0 < drafted_steps(account, -0.5, 5000) < 200
    assert 0 < drafted_steps(account, -0.5, 5000) < 180
    assert drafted_steps(account, 0.5, 5000) > 3500


def test_reading_is_paid_for_by_and_by_or_at_the_end() -> None:
    account = Account(1)
    account.drafted(0.0, 4.0, 1.0)
    assert account.balance == pytest.approx(8.0 - 4.0 / 32, abs=0.02)
    while account.is_open:
        account.idle()
    assert account.balance == pytest.approx(4.0, abs=0.02)


def test_a_price_that_cannot_be_paid_is_not() -> None:
    account = Account(1)
    for _ in range(4):
        account.idle()
    account.arrived(1, 10.0)
    assert not account.is_open
    account.arrived(1, 2.0)
    assert account.is_open
