"""The choice of drafts against the best that is constant, on simulated clocks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.simulated_engine import Costs, SimulatedEngine

from penstock.interface.messages import EngineRequest
from penstock.sampling.params import SamplingParams
from penstock.scheduler.sequence import SequenceState, make_sequences
from penstock.speculate.controller import Controller, Offer
from penstock.speculate.step_cost_model import DraftTiming

FLAT = Costs(lambda rows: 0.98 + 0.02 * rows, lambda n: 0.08 + 0.004 * n, 0.0, 0.05, 0.05)
STEEP = Costs(lambda rows: 0.8 + 0.12 * rows, lambda n: 0.1 + 0.02 * n, 0.0, 0.15, 0.05)
NO_DRAFTING = Costs(lambda rows: 0.95 + 0.05 * rows, lambda n: 0.0, 0.0, 0.0, 0.05)
READING = Costs(lambda rows: 0.98 + 0.02 * rows, lambda n: 0.08 + 0.004 * n, 0.01, 0.2, 0.05)
ALL = [FLAT, STEEP, NO_DRAFTING]
NAMES = ["flat", "steep", "no-drafting"]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("costs", ALL, ids=NAMES)
@pytest.mark.parametrize(
    ("batch", "steps", "alpha"),
    [
        *((1, 2000, alpha) for alpha in (0.05, 0.3, 0.5, 0.7, 0.95)),
        *((8, 800, alpha) for alpha in (0.05, 0.7, 0.95)),
        (32, 400, 0.05),
        (32, 400, 0.9),
    ],
)
def test_close_to_the_best_choice(costs: Costs, batch: int, steps: int, alpha: float) -> None:
    engine = SimulatedEngine(costs, alpha, batch)
    assert engine.run(steps) > 0.98 * engine.plain()  # learning included
    # Where there is little to gain, that is what may be missed.
    gain = engine.best() / engine.plain()
    assert engine.run(steps) > (0.92 if 1.0 < gain < 1.2 else 0.94) * engine.best()


@pytest.mark.thinned(4)
@pytest.mark.parametrize("costs", ALL, ids=NAMES)
@pytest.mark.parametrize(("batch", "steps"), [(1, 3000), (8, 1000), (32, 400)])
def test_drafts_that_fail_after_they_paid(costs: Costs, batch: int, steps: int) -> None:
    engine = SimulatedEngine(costs, 0.9, batch)
    engine.run(steps)
    engine.alpha = 0.05
    assert engine.run(steps) > (1.0 - 0.01 - 30 / steps) * engine.plain()
    assert engine.run(steps) > 0.98 * engine.plain()


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("batch", "steps", "share"), [(1, 3000, 0.95), (8, 1500, 0.9)])
def test_drafts_that_pay_after_they_failed(batch: int, steps: int, share: float) -> None:
    engine = SimulatedEngine(FLAT, 0.05, batch)
    engine.run(steps)
    engine.alpha = 0.9
    assert engine.run(steps) > share * engine.best()


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("batch", "steps"), [(1, 4000), (8, 1500), (32, 600)])
def test_reading_is_no_loss_either(batch: int, steps: int) -> None:
    """Sequences come and go, and reading one takes as long as a step of it."""
    engine = SimulatedEngine(READING, 0.2, batch, length=150)
    assert engine.run(steps) > 0.975 * engine.plain()
    assert engine.drafted > 0


def test_reading_that_takes_long_may_pay() -> None:
    """A prompt takes five steps to read, which the first of eight cannot have earned yet."""
    engine = SimulatedEngine(replace(READING, read=0.05), 0.95, 8, length=600)
    assert engine.run(1500) > 1.2 * engine.plain()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seconds", [20.0, 60.0])
def test_a_first_reading_by_cold_weights_is_no_reason_to_give_up(seconds: float) -> None:
    engine = SimulatedEngine(replace(READING, first_read=seconds), 0.8, 8, length=150)
    assert engine.run(500) > 1.1 * engine.plain()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("batch", [1, 8])
def test_prompts_in_every_step_end_no_drafts(batch: int) -> None:
    """The baseline is due to be measured again, and there is no step without a prompt."""
    engine = SimulatedEngine(FLAT, 0.8, batch)
    engine.run(200)
    engine.prompt_rows = 20
    assert engine.run(1000) > 1.3 * engine.plain()


def test_a_new_sequence_is_not_judged_by_the_last() -> None:
    """One that is alone and whose drafts fail, and others whose drafts do not."""
    engine = SimulatedEngine(FLAT, 0.8, 1)
    engine.run(500)
    engine.alpha = 0.0
    engine.arrive()
    engine.run(60)
    before = engine.drafted
    engine.alpha = 0.8
    engine.arrive()
    engine.run(40)
    assert engine.drafted - before > 40


def test_at_rest_nobody_is_looked_at() -> None:
    engine = SimulatedEngine(STEEP, 0.0, 8)
    engine.run(1000)
    looked = 0

    def running() -> Iterator[SequenceState]:
        nonlocal looked
        looked += 1
        yield from engine.sequences

    for _ in range(200):
        engine.run(1, running())
    assert looked < 20


@pytest.mark.thinned(3)
@pytest.mark.parametrize("costs", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize(("batch", "steps"), [(1, 2000), (8, 800)])
def test_steps_that_are_held_up_mislead_nobody(costs: Costs, batch: int, steps: int) -> None:
    """All steps together take 1 + 9 / 53 times as long as without these."""
    for alpha in (0.05, 0.8):
        engine = SimulatedEngine(replace(costs, held_up=53), alpha, batch)
        for _ in range(2):
            assert engine.run(steps) > 0.95 * max(engine.plain(), 0.95 * engine.best()) / (
                1 + 9 / 53
            )


def slower(costs: Costs, drafts: float = 1.0, steps: float = 1.0) -> Costs:
    return replace(
        costs,
        step=lambda rows: steps * costs.step(rows),
        drafted=lambda count: drafts * costs.drafted(count),
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("spell", [20.0, 200.0])
def test_a_machine_that_others_use_in_bursts(spell: float) -> None:
    """All takes three times as long for random spells, so that drafts seem to lose by turns."""
    for alpha in (0.05, 0.8):
        engine = SimulatedEngine(FLAT, alpha, 1)
        plain, best = engine.plain(), engine.best()
        chance, until, factor, undisturbed = random.Random(1), 0.0, 1.0, 0.0
        for _ in range(3000):
            if engine.now >= until:
                until += chance.expovariate(1.0 / spell)
                factor = chance.choice([1.0, 3.0])
                engine.costs = slower(FLAT, drafts=factor, steps=factor)
            began = engine.now
            engine.run(1)
            undisturbed += (engine.now - began) / factor
        assert engine.tokens / undisturbed > max(0.95 * plain, 0.9 * best if alpha > 0.5 else 0.0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("costs", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize(("batch", "steps"), [(1, 2000), (8, 800)])
def test_a_model_that_drafts_half_as_fast_as_it_did(costs: Costs, batch: int, steps: int) -> None:
    for alpha in (0.05, 0.8):
        engine = SimulatedEngine(costs, alpha, batch)
        engine.run(steps)
        engine.costs = slower(costs, drafts=2.0)
        assert engine.run(steps) > 0.98 * engine.plain()
        assert engine.run(steps) > 0.9 * engine.best()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("costs", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize(("batch", "steps"), [(1, 2000), (8, 800)])
def test_steps_that_take_longer_from_now_on(costs: Costs, batch: int, steps: int) -> None:
    """Drafts then seem to lose against what plain steps took before."""
    engine = SimulatedEngine(costs, 0.6, batch)
    engine.run(steps)
    for factor in (1.5, 1.0):
        engine.costs = slower(costs, steps=factor)
        assert engine.run(steps) > 0.97 * engine.plain()
        assert engine.run(steps) > 0.92 * engine.best()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("costs", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize(("batch", "steps"), [(1, 2000), (8, 800)])
def test_an_engine_that_warms_up(costs: Costs, batch: int, steps: int) -> None:
    """Drafts then seem to gain over what plain steps took at first."""
    for alpha in (0.05, 0.4):
        engine = SimulatedEngine(slower(costs, steps=3.0), alpha, batch)
        engine.run(20)
        engine.costs = costs
        assert engine.run(steps) > 0.9 * engine.plain()
        assert engine.run(steps) > 0.88 * engine.best()


def test_acceptance_that_changes_all_the_time() -> None:
    """What fails is noticed in a few dozen steps, what pays again in a few hundred."""
    engine = SimulatedEngine(FLAT, 0.9, 1)
    for _ in range(5):
        engine.alpha = 0.05
        assert engine.run(300) > 0.89 * engine.plain()
        engine.alpha = 0.9
        assert engine.run(300) > 1.3 * engine.plain()


KNEE = replace(FLAT, step=lambda rows: 1.0 + 0.01 * rows + max(rows - 16, 0) * 0.06)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("costs", [FLAT, STEEP, KNEE], ids=["flat", "steep", "knee"])
def test_batches_that_grow(costs: Costs) -> None:
    """Rows are cheap until there are many: what paid for one sequence costs in a batch."""
    for alpha in (0.05, 0.8):
        engine = SimulatedEngine(costs, alpha, 1)
        engine.run(600)
        for batch, steps in ((8, 400), (32, 300)):
            engine.grow(batch)
            assert engine.run(steps) > 0.97 * engine.plain()
            assert engine.run(steps) > 0.92 * engine.best()


@pytest.mark.thinned(4)
@pytest.mark.parametrize("costs", [FLAT, STEEP, KNEE], ids=["flat", "steep", "knee"])
@pytest.mark.parametrize("batch", [2, 8, 32])
def test_sequences_of_one_batch_are_distinguished(costs: Costs, batch: int) -> None:
    """Drafts of every other sequence fail; the best constant length is one for all."""
    engine = SimulatedEngine(costs, 0.9, batch)
    engine.odd_alpha = 0.05
    for _ in range(2):
        assert engine.run(600) > 0.97 * engine.best()


def test_a_batch_agrees_on_a_length() -> None:
    """All wait for the longest draft, so sequences do not differ because of noise."""
    for seed in (1, 7, 12):
        engine = SimulatedEngine(FLAT, 0.9, 32, seed=seed)
        engine.run(400)
        assert engine.run(400) > 0.95 * engine.best()


def test_sequences_that_change_places_are_noticed() -> None:
    """Those whose drafts failed are looked at beside the others."""
    engine = SimulatedEngine(FLAT, 0.9, 8)
    engine.odd_alpha = 0.05
    engine.run(600)
    engine.alpha, engine.odd_alpha = 0.05, 0.9
    assert engine.run(600) > 0.95 * engine.best()


def sequence() -> SequenceState:
    request = EngineRequest(request_id="a", prompt_token_ids=[1] * 9, params=SamplingParams())
    made = make_sequences(request, 0)
    made.max_total_tokens = 1000
    return made


def expected(controller: Controller, sequence: SequenceState, group: int, count: int) -> float:
    return [0.0, *controller._record(sequence).expected(group)][count]


def ready(controller: Controller, decoding: int) -> None:
    """Steps without drafts take a second, with or without others, and a row more a tenth."""
    controller.plain_step(decoding, 10, 1.0, 0.0)
    for _ in range(30):
        controller.plain_step(decoding, 1, 1.0, 0.0)


def test_trees_are_chosen_by_the_acceptance_of_their_ranks() -> None:
    controller = Controller(2, 6, trees=[1])
    one = sequence()
    assert controller.lengths([Offer(one, 1, 6)], 1) == [0]  # steps are to be timed first
    ready(controller, 1)
    for _ in range(40):
        # Of six nodes the first, the third and the fourth are the path.
        length = controller.lengths([Offer(one, 1, 6)], 1)[0]
        if not length:  # steps without drafts are timed again
            ready(controller, 1)
            continue
        path = [rank for rank in (0, 2, 3) if rank < length]
        controller.verified(one, 1, length, path)
        controller.draft_step(DraftTiming(1, length, 0.01, True), 1, length, 1.0 + 0.02 * length)
    # The last two never bring anything.
    assert controller.lengths([Offer(one, 1, 6)], 1) == [4]
    gains = [expected(controller, one, 1, count) for count in range(7)]
    assert gains[0] == 0.0
    assert gains[1] > 0.9
    assert gains[4] - gains[3] > 0.8
    assert gains[6] - gains[4] < 0.2


def test_a_chain_of_the_same_controller_is_a_product() -> None:
    controller = Controller(2, 6, trees=[1])
    one = sequence()
    for _ in range(40):
        controller.verified(one, 0, 6, range(3))
    gains = [expected(controller, one, 0, count) for count in range(7)]
    assert gains[3] > 2.5
    assert gains[6] - gains[3] < 0.5


def test_who_has_much_to_be_read_must_gain_by_it() -> None:
    controller = Controller(1, 4)
    young, old = sequence(), sequence()
    old.token_ids.extend([1] * 900)
    old.max_total_tokens = 2000
    controller.lengths([Offer(young, 0, 4)], 1)
    ready(controller, 1)
    for _ in range(20):
        (length,) = controller.lengths([Offer(young, 0, 4)], 1)
        controller.verified(young, 0, length, range(length))
        # Reading a token takes as long as a step.
        controller.draft_step(DraftTiming(1, length, 9.0, False), 1, length, 1.1)
        if not controller.drafts:
            break
    assert controller._record(young).num_read == 9
    for _ in range(4000):
        controller.plain_step(1, 1, 1.0, 0.0)
    assert controller.lengths([Offer(old, 0, 4)], 1) == [0]
