"""Replicas whose prompts are computed apart: by the rules of the engines, on clocks that can be
worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import EvenClock, played, setup_of, single

from penstock.bench.load.turn import Conversation, Piece
from penstock.simulate.apart import ApartReplica
from penstock.simulate.fleet import Fleet
from penstock.simulate.handed import Way
from penstock.simulate.outcome import outcome
from penstock.simulate.setup import Apart, Setup

BLOCK = 32
NEAR = Way(1e-4, 1e-9)


def apart(way: Way = NEAR, token_bytes: int = 1000, **options: object) -> Apart:
    known = {"engines": 1, "group_bytes": (BLOCK * token_bytes,), "way": way, **options}
    return Apart(**known)  # type: ignore[arg-type]


def setup(
    its: Apart | None, token: float = 1e-3, step: float = 0.01, blocks: int = 2000, seqs: int = 16
) -> Setup:
    """Engines that compute 1,000 tokens a second, in steps of at most 512, each of 10 ms more."""
    return setup_of(
        EvenClock(step, token),
        seqs=seqs,
        budget=512,
        blocks=blocks,
        context=4096,
        block_size=BLOCK,
        apart=its,
    )


def books(fleet: Fleet) -> ApartReplica:
    (replica,) = fleet.replicas
    assert isinstance(replica, ApartReplica)
    for each in replica._prefills:
        each.engine.scheduler.check_integrity()
        assert not each.engine.has_work
        assert each.engine.scheduler.cache.num_used_blocks == 0
    replica._decode.check_integrity()
    return replica


def worst_itl(fleet: Fleet) -> float:
    return max(each.longest_gap for each in fleet.answers)


def long_and_short(count: int = 6) -> list[Conversation]:
    """An answer that takes a while, and long prompts that come meanwhile, each a second and more
    behind the other."""
    return [
        single(0, 0.0, 20, 400),
        *(single(i, 0.5 + 1.3 * i, 1000, 2) for i in range(1, count)),
    ]


def test_a_prompt_takes_its_way() -> None:
    """A second and two steps' 10 ms for 960 tokens there, a step here for the 40 that are left."""
    fleet = played(setup(apart(least_tokens=1)), [single(0, 0.0, 1000, 1)])
    (answer,) = fleet.answers
    assert answer.cached == 992  # 31 whole blocks
    expected = 0.992 + 2 * 0.01 + 0.008 + 0.01
    assert answer.first_s == pytest.approx(expected, abs=2e-3)
    found = books(fleet).handovers
    assert (found.completed, found.failed, found.declined, found.recomputed_tokens) == (1, 0, 0, 0)
    assert found.tokens == 992
    assert found.bytes == 992 * 1000


def test_answers_come_evenly_where_prompts_are_computed_apart() -> None:
    """One engine computes up to 512 tokens of a prompt between two tokens of the answer."""
    mixed = played(setup(None), long_and_short())
    divided = played(setup(apart()), long_and_short())
    assert worst_itl(mixed) > 0.5
    assert worst_itl(divided) < 0.1
    found = books(divided).handovers
    assert (found.completed, found.declined) == (5, 0)
    assert all(each.tokens == each.asked.output for each in divided.answers)


def test_nothing_is_handed_over_where_bytes_take_longer_than_tokens() -> None:
    """A byte takes 2 us, a token's 1,000 bytes 2 ms, and computing it 1 ms. The engines learn that
    by the first prompt."""
    fleet = played(setup(apart(Way(1e-4, 2e-6))), long_and_short(12))
    found = books(fleet).handovers
    assert found.completed <= 2
    assert found.declined >= 8
    assert worst_itl(fleet) > 0.5


def test_short_prompts_are_not_handed_over() -> None:
    fleet = played(setup(apart()), [single(i, float(i), 120, 2) for i in range(4)])
    assert books(fleet).handovers.completed == 0
    one = played(setup(None), [single(i, float(i), 120, 2) for i in range(4)])
    assert [each.last_s for each in fleet.answers] == [each.last_s for each in one.answers]


def test_a_prefill_engine_in_arrears_gets_no_more() -> None:
    """Prompts of a second each, 20 at once: those that it would not have done in time are computed
    here."""
    prompts = [single(0, 0.0, 1000, 1), *(single(i, 5.0, 1000, 1) for i in range(1, 21))]
    fleet = played(setup(apart(max_wait_s=4.5)), prompts)
    found = books(fleet).handovers
    assert 3 <= found.completed <= 6
    assert found.declined == 21 - found.completed
    seconds = max(each.last_s for each in fleet.answers)
    assert seconds < played(setup(None), prompts).answers[-1].last_s


def test_two_prefill_engines_divide_prompts() -> None:
    prompts = [single(0, 0.0, 1000, 1), *(single(i, 5.0, 1000, 1) for i in range(1, 9))]

    def end(engines: int) -> float:
        fleet = played(setup(apart(engines=engines, max_wait_s=100.0)), prompts)
        assert books(fleet).handovers.completed == 9
        return max(each.last_s for each in fleet.answers)

    assert end(1) - 5 == pytest.approx(8.2, abs=0.4)
    assert end(2) - 5 == pytest.approx(4.1, abs=0.4)


def test_prefixes_are_handed_over_once() -> None:
    shared = Piece((7,), 960)
    talks = [single(i, 3.0 * i, [shared, Piece((8, i), 40)], 2) for i in range(3)]
    fleet = played(setup(apart()), talks)
    found = books(fleet).handovers
    assert found.tokens == 992  # the first; of the others 40 tokens are new
    assert [each.cached for each in fleet.answers] == [992, 960, 960]


def test_figures_say_what_came_of_handovers() -> None:
    fleet = played(setup(apart()), long_and_short())
    made = outcome(fleet, [], None, 1.0, None, 0.0)
    assert made.handovers is not None
    assert made.handovers.completed == 5
    assert made.engine.steps == sum(work.steps for work in books(fleet).works)
    one = outcome(played(setup(None), long_and_short()), [], None, 1.0, None, 0.0)
    assert one.handovers is None


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_nothing_is_lost_whatever_the_way(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 10))
    talks: list[Conversation] = []
    for index in range(count):
        shared = data.draw(st.sampled_from([0, 64, 300]))
        pieces: Sequence[Piece] = [Piece((1,), shared)] if shared else []
        pieces = [*pieces, Piece((9, index), data.draw(st.integers(1, 900)))]
        at = data.draw(st.integers(0, 40)) / 8
        talks.append(single(index, at, pieces, data.draw(st.integers(1, 40))))
    talks.sort(key=lambda each: each.at_s or 0.0)
    its = apart(
        Way(data.draw(st.sampled_from([0.0, 0.3])), data.draw(st.sampled_from([1e-9, 2e-6]))),
        token_bytes=data.draw(st.sampled_from([1000, 400_000])),
        engines=data.draw(st.integers(1, 3)),
        least_tokens=data.draw(st.sampled_from([None, 1])),
    )
    fleet = played(setup(its, blocks=data.draw(st.sampled_from([140, 2000])), seqs=4), talks)
    found = books(fleet).handovers
    assert all(each.error is None and each.tokens == each.asked.output for each in fleet.answers)
    assert found.open == 0
    for each in fleet.answers:
        assert each.first_s is not None
        assert each.first_s > each.asked.sent_s
