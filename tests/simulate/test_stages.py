"""A pipeline with several steps in flight: times worked out by hand, and what holds of any."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import AT_ONCE, EvenClock, played, setup_of, single

from penstock.bench.load.turn import Conversation, Piece
from penstock.simulate.fleet import Fleet
from penstock.simulate.stages import HandOver, Stages


def even(*seconds: float, ways: Sequence[HandOver] | None = None, token: float = 0.0) -> Stages:
    """Stages whose steps take these times each, and so much for each of their tokens."""
    clocks = tuple(EvenClock(each, token) for each in seconds)
    return Stages(clocks, tuple(ways or [HandOver()] * len(clocks)))


def ends(fleet: Fleet) -> list[tuple[float | None, float | None, float]]:
    return [(each.first_s, each.second_s, each.last_s) for each in fleet.answers]


def test_one_sequence_takes_its_turn_on_each_stage() -> None:
    fleet = played(setup_of(stages=even(1.0, 2.0)), [single(0, 0.0, 2, 3)])
    assert ends(fleet) == [(3.0, 6.0, 9.0)]


def test_two_sequences_decode_in_two_steps() -> None:
    # Both prompts fit one step, which ends at 2. Then the first is on stage 0 from 2 to 3, when the
    # second follows it, and each comes back as the other has left.
    fleet = played(setup_of(stages=even(1.0, 1.0)), [single(0, 0.0, 2, 3), single(1, 0.0, 2, 3)])
    assert ends(fleet) == [(2.0, 4.0, 6.0), (2.0, 5.0, 7.0)]
    assert fleet.replicas[0].engine.work.steps == 5


def test_the_slowest_stage_holds_others_up() -> None:
    fleet = played(setup_of(stages=even(1.0, 3.0)), [single(i, 0.0, 2, 3) for i in range(2)])
    # The engine's own stage takes 3 for each, one after the other.
    assert ends(fleet) == [(4.0, 8.0, 14.0), (4.0, 11.0, 17.0)]
    fleet = played(setup_of(stages=even(3.0, 1.0)), [single(i, 0.0, 2, 3) for i in range(2)])
    # So does stage 0: steps leave it at 7, 10, 13 and 16.
    assert ends(fleet) == [(4.0, 8.0, 14.0), (4.0, 11.0, 17.0)]


def test_rows_take_their_way() -> None:
    ways = [HandOver(0.25, 9.0), HandOver(0.5, 0.125)]
    fleet = played(setup_of(stages=even(1.0, 1.0, ways=ways)), [single(0, 0.0, 2, 2)])
    # What the engine sends are tokens: 0.25, 1, then 0.5 and 2 / 8, then 1; a token less later.
    assert ends(fleet) == [(3.0, 5.875, 5.875)]


def test_chunks_of_a_prompt_follow_each_other() -> None:
    # Steps of 8 tokens, which is half of what all steps in flight may have; a second each, and one
    # for each token. Stage 0 has the chunks from 0, 9 and 18 on; 9 are left after two.
    setup = setup_of(stages=even(1.0, 1.0, token=1.0), budget=16)
    fleet = played(setup, [single(0, 0.0, 24, 2)])
    assert fleet.answers[0].first_s == 36.0
    one = played(setup_of(EvenClock(2.0, 2.0), budget=8), [single(0, 0.0, 24, 2)])
    assert one.answers[0].first_s == 54.0


def test_stages_of_one_machine_are_slower_beside_each_other() -> None:
    stages = Stages(
        (EvenClock(1.0), EvenClock(1.0)),
        (HandOver(), HandOver()),
        (EvenClock(2.0), EvenClock(2.0)),
    )
    alone = played(setup_of(stages=stages), [single(0, 0.0, 2, 3)])
    assert ends(alone) == [(2.0, 4.0, 6.0)]
    two = played(setup_of(stages=stages), [single(0, 0.0, 2, 3), single(1, 0.0, 2, 3)])
    # The step of prompts is alone. The first of the others begins alone on stage 0 at 2; nothing is
    # alone then but the last step's part on the engine's own stage.
    assert ends(two) == [(2.0, 5.0, 9.0), (2.0, 7.0, 10.0)]


def test_a_server_takes_its_part_of_every_stage() -> None:
    front = msgspec.structs.replace(AT_ONCE, slower=0.5, step=0.25, sequence=0.125)
    fleet = played(setup_of(stages=even(1.0, 1.0), front=front), [single(0, 0.0, 2, 2)])
    assert ends(fleet) == [(3.375, 6.75, 6.75)]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_nothing_is_lost_in_any_pipeline(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 10))
    talks: list[Conversation] = []
    for index in range(count):
        shared = data.draw(st.integers(0, 20))
        pieces = [Piece((1,), shared)] if shared else []
        pieces.append(Piece((9, index), data.draw(st.integers(1, 40))))
        output = data.draw(st.integers(1, 30))
        talks.append(single(index, data.draw(st.integers(0, 80)) / 8, pieces, output))
    talks.sort(key=lambda each: each.at_s or 0.0)
    depth = data.draw(st.integers(1, 4))
    seqs = data.draw(st.integers(1, 5))
    times = [data.draw(st.sampled_from([0.25, 1.0, 3.0])) for _ in range(depth)]
    setup = setup_of(
        stages=even(*times, ways=[HandOver(0.125, 1 / 64)] * depth, token=0.125),
        seqs=seqs,
        budget=4 * seqs + 16,
        blocks=data.draw(st.sampled_from([30, 200])),
        context=96,
        windows=data.draw(st.sampled_from([(None,), (None, 8)])),
    )
    fleet = played(setup, talks)
    assert all(each.error is None and each.tokens == each.asked.output for each in fleet.answers)
    stats = fleet.replicas[0].scheduler.stats()
    assert stats.tokens_generated == sum(each.asked.output for each in fleet.answers)
    # No token comes before a step could bring it through all stages.
    for each in fleet.answers:
        assert each.first_s is not None
        assert each.first_s >= each.asked.sent_s + sum(times)
        assert each.last_s >= each.first_s + (each.tokens - 1) * sum(times)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_all_stages_work_where_there_are_sequences_enough(depth: int) -> None:
    stages = even(*[1.0] * depth)
    setup = setup_of(stages=stages, seqs=8, budget=64, blocks=200)
    fleet = played(setup, [single(i, 0.0, 2, 40) for i in range(8)])
    # A step ends every second, and has its part of the sequences.
    seconds = max(each.last_s for each in fleet.answers)
    assert seconds == pytest.approx(39 * depth, abs=3 * depth)
