from __future__ import annotations

import pytest

from penstock.speculate.acceptance import Acceptance


def test_sequences_are_distinguished() -> None:
    common = Acceptance(1, 4)
    good, bad = Acceptance(1, 4, common), Acceptance(1, 4, common)
    for _ in range(50):
        good.add(0, 4, range(4))
        bad.add(0, 4, range(0))
    assert good.rates(0)[0] > 0.85
    assert bad.rates(0)[0] < 0.15
    assert 0.4 < common.rates(0)[0] < 0.6
    assert bad.rates(0)[3] > 0.9  # never tried: what is known of all


def test_a_chain_expects_products_and_a_tree_sums() -> None:
    common = Acceptance(2, 3, trees=[1])
    one = Acceptance(2, 3, common)
    for _ in range(200):
        one.add(0, 3, range(2))
        one.add(1, 3, [0, 2])
    assert one.expected(0) == pytest.approx([1.0, 2.0, 2.0], abs=0.1)
    assert one.expected(1) == pytest.approx([1.0, 1.0, 2.0], abs=0.1)
    other = Acceptance(2, 3, common)
    assert other.expected(1) == pytest.approx(one.expected(1), abs=0.1)


def test_expectations_follow_what_is_learnt_of_others() -> None:
    common = Acceptance(1, 1)
    idle, busy = Acceptance(1, 1, common), Acceptance(1, 1, common)
    before = idle.expected(0)[0]
    for _ in range(200):
        busy.add(0, 1, range(0))
    assert before > 0.6
    assert idle.expected(0)[0] < 0.2


def test_what_is_forgotten_is_learnt_anew_sooner() -> None:
    kept, forgot = Acceptance(1, 1), Acceptance(1, 1)
    for each in (kept, forgot):
        for _ in range(200):
            each.add(0, 1, range(0))
    forgot.forget(0.2)
    for each in (kept, forgot):
        for _ in range(20):
            each.add(0, 1, range(1))
    assert forgot.rates(0)[0] > kept.rates(0)[0] + 0.2


def test_a_position_that_was_never_tried_is_guessed_from_the_one_before() -> None:
    """Otherwise drafts stay short for no other reason than that they always were."""
    for accepted in (0, 2):
        common = Acceptance(1, 4)
        for _ in range(50):
            common.add(0, 2, range(accepted))
        assert common.rates(0)[3] == pytest.approx(common.rates(0)[1], abs=0.01)
        assert Acceptance(1, 4, common).rates(0)[3] == pytest.approx(common.rates(0)[3])
