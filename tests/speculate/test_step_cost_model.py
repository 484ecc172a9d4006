from __future__ import annotations

import pytest

from penstock.speculate.step_cost_model import CostCurve, DraftTiming, StepCostModel


def measured(*costs: tuple[int, float]) -> CostCurve:
    made = CostCurve()
    for rows, seconds in costs:
        for _ in range(3):
            made.add(rows, seconds)
    return made


def test_the_middle_of_the_first_is_believed() -> None:
    costs = CostCurve()
    costs.add(1, 1.0)
    costs.add(1, 9.0)
    assert costs.seconds(3) == 0.0
    assert not costs.knows(1)
    costs.add(1, 1.2)
    assert costs.knows(1)
    assert costs.seconds(1) == 1.2


def test_between_and_beyond_what_was_measured() -> None:
    costs = measured((1, 1.0))
    assert costs.seconds(3) == pytest.approx(1.2)
    for _ in range(3):
        costs.add(5, 2.0)
    assert costs.seconds(3) == pytest.approx(1.5)
    assert costs.seconds(9) == pytest.approx(3.0)  # as steep as before, not flat
    assert measured((10, 3.0), (20, 2.0)).seconds(40) == 2.0  # noise: more rows are not cheaper
    assert measured((8, 1.0), (9, 3.0), (2, 0.7)).seconds(16) < 10.0  # nor by neighbours' noise


def test_nothing_takes_no_time() -> None:
    costs = CostCurve(through_zero=True)
    assert costs.seconds(4) == 0.0
    for _ in range(3):
        costs.add(2, 1.0)
    assert costs.seconds(1) == pytest.approx(0.5)
    assert costs.seconds(4) == pytest.approx(2.0)


def test_many_rows_are_distinguished_roughly() -> None:
    costs = measured((32, 1.0), (64, 2.0))
    assert costs.seconds(48) == pytest.approx(1.5, rel=0.05)
    assert costs.seconds(128) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize(("rows", "known"), [(8, True), (9, True), (7, False), (32, False)])
def test_what_is_near_is_known(rows: int, known: bool) -> None:
    assert measured((8, 1.0)).knows(rows) is known
    assert measured((8, 1.0), (32, 2.0)).knows(20)
    assert measured((2, 1.0), (32, 2.0)).knows(20)


def test_it_follows_what_changes() -> None:
    costs = measured((1, 1.0))
    for _ in range(200):
        costs.add(1, 3.0)
    assert costs.seconds(1) == pytest.approx(3.0, rel=0.01)
    for _ in range(6):
        costs.add(1, 2.0)
    assert costs.seconds(1) > 2.6
    costs.renew(1)
    for _ in range(6):
        costs.add(1, 2.0)
    assert costs.seconds(1) < 2.4


def test_a_step_that_was_held_up_counts_little() -> None:
    costs = measured((1, 1.0))
    for _ in range(10):
        costs.add(1, 1.0)
    costs.add(1, 1000.0)
    assert costs.seconds(1) < 1.1


def model(num_tokens: int = 4, reads: bool = True) -> StepCostModel:
    """A step of one row takes a second, and one that verifies two rows 1.2."""
    costs = StepCostModel(num_tokens, reads)
    for _ in range(3):
        costs.plain.add(1, 1.0)
        costs.verified(1, 1, 1.2)
        costs.drafted(DraftTiming(1, 1, 0.1, True), 0, 1.0)
    return costs


def test_ratios_are_of_verifying_and_of_drafting() -> None:
    assert model().relative_costs(1, 1)[0] == pytest.approx(1.3)
    assert model(reads=False).relative_costs(1, 1)[0] == pytest.approx(1.2)  # it was made already


def test_many_rows_are_felt_out() -> None:
    assert len(model(16).relative_costs(1, 1)) == 3
    costs = model(16)
    for _ in range(3):
        costs.verified(1, 3, 1.4)
    assert len(costs.relative_costs(1, 1)) == 5


def test_what_others_do_with_the_processor_is_not_booked() -> None:
    costs = model()
    assert costs.verified(1, 1, 100.0) == pytest.approx(2.4)
    drafting, reading = costs.drafted(DraftTiming(1, 1, 50.0, True), 0, 1.0)
    assert drafting == pytest.approx(0.2)
    assert reading == 0.0


def test_reading_is_distinguished_from_drafting() -> None:
    costs = model()
    first = costs.drafted(DraftTiming(1, 1, 50.1, False), 500, 1.0)
    assert first == pytest.approx((0.1, 3.0))
    drafting, reading = costs.drafted(DraftTiming(1, 1, 5.1, False), 100, 1.0)
    assert drafting == pytest.approx(0.1)
    assert reading == pytest.approx(5.0)
    assert costs.seconds_per_token_read == pytest.approx(0.05)
    costs.doubt()
    assert costs.seconds_per_token_read == pytest.approx(0.025)


def test_a_step_with_other_rows_reports_nothing() -> None:
    costs = model()
    assert costs.verified(1, 1, None) == pytest.approx(1.2)


def plain(costs: StepCostModel, steps: int, seconds: float = 1.0) -> None:
    for _ in range(steps):
        costs.plain_step(1, 1, seconds)


def test_the_first_steps_after_drafts_are_not_the_baseline() -> None:
    costs = StepCostModel(4, True)
    plain(costs, 8, 2.0)
    assert not costs.plain.knows(1)
    plain(costs, 6)
    costs.verified(1, 4, 1.5)
    assert [costs.plain_step(1, 1, 2.0) for _ in range(9)] == [False] * 8 + [True]
    assert costs.plain.seconds(1) < 1.2


def test_the_baseline_is_measured_again_soon_and_then_seldom() -> None:
    costs = StepCostModel(4, True)
    plain(costs, 20)
    gaps = []
    for _ in range(5):
        drafts = 0
        while not costs.timing:
            costs.verified(1, 4, 1.5)
            drafts += 1
        gaps.append(drafts)
        while costs.timing:
            plain(costs, 1)
    assert gaps == [32, 128, 512, 2048, 2048]


def test_a_wrong_baseline_is_corrected() -> None:
    """What was measured while the engine warmed up counts less and less."""
    costs = StepCostModel(4, True)
    plain(costs, 20, 3.0)
    for most in (1.8, 1.4, 1.2):
        while not costs.timing:
            costs.verified(1, 4, 1.5)
        plain(costs, 14)
        assert 1.0 <= costs.plain.seconds(1) < most


def test_a_baseline_that_drafts_seem_to_lose_against_is_doubted() -> None:
    costs = StepCostModel(4, True)
    plain(costs, 20)
    costs.doubt_plain(1)
    assert not costs.timing  # it was measured just now
    for _ in range(31):
        costs.verified(1, 4, 1.5)
    costs.doubt_plain(1)
    assert not costs.timing
    costs.verified(1, 4, 1.5)
    while costs.timing:
        plain(costs, 1)
    for _ in range(40):
        costs.verified(1, 4, 1.5)
    assert not costs.timing
    costs.doubt_plain(1)
    assert costs.timing


def test_nobody_waits_for_a_plain_step_where_prompts_never_end() -> None:
    costs = StepCostModel(4, True)
    costs.time_plain()
    for _ in range(5):
        costs.prefill_step()
    assert costs.timing
    costs.prefill_step()
    assert not costs.timing
