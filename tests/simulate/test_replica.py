"""A simulated server: times worked out by hand, and steps taken at once beside single ones."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import AT_ONCE, EvenClock, played, setup_of, single

from penstock.bench.load.turn import Conversation, Piece
from penstock.scheduler.scheduler import Scheduler
from penstock.simulate import front_end
from penstock.simulate.fleet import Fleet
from penstock.simulate.front_end import Answer, FrontTimes


def seen(fleet: Fleet) -> list[tuple[object, ...]]:
    return [
        (a.first_s, a.second_s, a.last_s, a.chunks, a.longest_gap, a.tokens, a.cached, a.error)
        for a in fleet.answers
    ]


def test_two_requests_by_hand() -> None:
    # A step of a second, and a second for each of its tokens. The first prompt is read from 1 to 5
    # (3 tokens); the second, sent at 2, waits for that, and is read beside the first's token.
    setup = setup_of(EvenClock(1.0, 1.0))
    fleet = played(setup, [single(0, 1.0, 3, 3), single(1, 2.0, 2, 2)])
    first, second = fleet.answers
    assert (first.first_s, first.last_s) == (5.0, 5.0 + 4.0 + 3.0)
    assert (second.first_s, second.last_s) == (9.0, 12.0)
    assert first.second_s == 9.0
    assert first.longest_gap == 4.0
    assert (first.tokens, second.tokens) == (3, 2)
    assert fleet.replicas[0].engine.work.steps == 3
    assert fleet.replicas[0].engine.work.busy_s == 11.0


def test_the_way_in_and_the_way_out() -> None:
    front = FrontTimes(
        request=0.5, prompt_token=0.25, answer=0.125, chunk=0.0625, step=2.0, sequence=1.0, pause=0
    )
    fleet = played(setup_of(EvenClock(1.0), front), [single(0, 0.0, 2, 1), single(1, 0.0, 2, 1)])
    first, second = fleet.answers
    # In at 0.5 + 2 / 4; a step of 1 + 2 + 1. The second is tokenized after the first, so it comes
    # during that step, and has one of its own.
    assert first.first_s == 1.0 + 4.0 + 0.125
    assert second.first_s == 5.0 + 4.0 + 0.125
    without = msgspec.structs.replace(front, prompt_token=0.0)
    fleet = played(setup_of(EvenClock(1.0), without), [single(0, 0.0, 2, 1), single(1, 0.0, 2, 1)])
    first, second = fleet.answers
    # In at 0.5, both; a step of 1 + 2 + 2, and a chunk after the other.
    assert first.first_s == 0.5 + 5.0 + 0.125
    assert second.first_s == 0.5 + 5.0 + 0.125 + 0.0625


def test_requests_that_come_together_are_handled_one_after_the_other() -> None:
    front = FrontTimes(request=1.0, prompt_token=0.25, handled=0.5, answer=0.0, chunk=0.0, pause=0)
    asked = [single(0, 0.0, 2, 1), single(1, 0.25, 2, 1), single(2, 8.0, 2, 1)]
    first, second, third = played(setup_of(EvenClock(0.5), front), asked).answers
    # The first is with the engine after 1 + 2 / 4. It keeps the loop until 0.5 + 2 / 4, when the
    # second begins, and nothing keeps the third.
    assert (first.first_s, second.first_s, third.first_s) == (2.0, 3.0, 10.0)


def test_a_request_waits_for_the_chunks_that_are_written_and_not_for_later_ones() -> None:
    front = msgspec.structs.replace(AT_ONCE, chunk=1.5)
    asked = [single(0, 0.0, 2, 1), single(1, 0.0, 2, 1), single(2, 2.5, 2, 1), single(3, 3.0, 2, 1)]
    first, second, third, fourth = played(setup_of(EvenClock(2.0), front), asked).answers
    # Both end at 2, and are written until 3.5 and 5. The third and the fourth come to the engine at
    # 5: what the step brings that begins then is not known yet when they come.
    assert (first.first_s, second.first_s) == (2.0, 3.5)
    assert (third.first_s, fourth.first_s) == (7.0, 8.5)


def test_steps_take_longer_beside_a_server() -> None:
    front = msgspec.structs.replace(AT_ONCE, slower=0.5, step=0.25)
    (answer,) = played(setup_of(EvenClock(1.0), front), [single(0, 0.0, 2, 4)]).answers
    assert (answer.first_s, answer.last_s) == (1.75, 7.0)


def test_requests_on_their_way_take_time_from_the_steps_that_run() -> None:
    front = msgspec.structs.replace(AT_ONCE, lost_request=0.5)
    asked = [single(0, 0.0, 2, 4), single(1, 1.25, 2, 1), single(2, 1.5, 2, 1)]
    first, *_ = played(setup_of(EvenClock(1.0), front), asked).answers
    # Steps end at 1 and 2; two requests disturb the third from 1.25 to 2, and none the fourth.
    assert first.last_s == 4.75
    alone = played(setup_of(EvenClock(1.0), front), asked[:1]).answers
    assert alone[0].last_s == 4.0


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers that ring at quarters of a second, so that sums are exact."""
    monkeypatch.setattr(front_end, "TIMER_S", 0.25)


def test_streams_are_paced(ticks: None) -> None:
    # A step a second, and pauses of 2.25 s for the one open sequence.
    front = msgspec.structs.replace(AT_ONCE, pause=2.25, longest_pause=9.0)
    (answer,) = played(setup_of(EvenClock(1.0), front), [single(0, 0.0, 2, 12)]).answers
    # Tokens at 1, 2, ... 12. The first is sent at once, and so is the second: nothing was
    # paused yet. Then 4.25, 6.5, 8.75, 11 and the last at 12, which does not wait.
    assert (answer.first_s, answer.second_s, answer.last_s) == (1.0, 2.0, 12.0)
    assert answer.chunks == 7
    assert answer.longest_gap == 2.25


@pytest.mark.parametrize("at_once", [True, False])
def test_a_pause_ends_with_a_step_or_when_the_timer_rings(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    if not at_once:
        monkeypatch.setattr(Scheduler, "steady_steps", lambda self, limit: 0)
    front = msgspec.structs.replace(AT_ONCE, pause=2.25, longest_pause=9.0)
    monkeypatch.setattr(front_end, "TIMER_S", 0.5)
    (answer,) = played(setup_of(EvenClock(1.0), front), [single(0, 0.0, 2, 12)]).answers
    # The pause from 2 is over at 4.25. The loop looked at its timers at 4, when a step ended, and
    # does so after half a second. So it is 4.5; then 6.75 is over at 7, with the step.
    assert answer.longest_gap == 2.5
    assert answer.chunks == 2 + 3 + 1  # 4.5, 7, 9.5 and 12, which is the last
    monkeypatch.setattr(front_end, "TIMER_S", 2.0)
    (answer,) = played(setup_of(EvenClock(1.0), front), [single(0, 0.0, 2, 12)]).answers
    assert answer.longest_gap == 3.0  # 5, 8, 11: steps end before the timer rings


def test_what_does_not_fit_and_what_is_too_much_is_refused() -> None:
    setup = setup_of(context=32, seqs=1, budget=8, max_waiting=1)
    fleet = played(
        setup,
        [single(0, 0.0, 40, 4), *(single(i, 0.5, 4, 4) for i in (1, 2, 3)), single(4, 60.0, 4, 4)],
    )
    assert [a.error for a in fleet.answers] == ["http 400", None, None, "http 429", None]


def test_a_place_is_taken_until_the_step_that_ends_its_answer_is_over() -> None:
    # The first answer ends at 2: its step runs when the second is sent, and is over for the third.
    setup = setup_of(seqs=1, max_waiting=0)
    fleet = played(setup, [single(0, 0.0, 4, 2), single(1, 1.5, 4, 2), single(2, 2.0, 4, 2)])
    assert [a.error for a in fleet.answers] == [None, "http 429", None]


def test_a_refusal_takes_its_way_in_and_back() -> None:
    front = FrontTimes(request=0.5, prompt_token=0.0, answer=0.125, chunk=0.0, pause=0)
    fleet = played(setup_of(context=32, front=front), [single(0, 1.0, 40, 4)])
    assert [a.end_s for a in fleet.answers] == [1.625]


def test_equal_beginnings_are_found_and_full_blocks_alone() -> None:
    shared = Piece((1,), 10)
    setup = setup_of()
    fleet = played(
        setup,
        [
            single(0, 0.0, [shared, Piece((2,), 5)], 2),
            single(1, 50.0, [shared, Piece((3,), 5)], 2),
            single(2, 60.0, [Piece((1,), 6), Piece((3,), 5)], 2),
            single(3, 70.0, [shared, Piece((2,), 9)], 2),
        ],
    )
    assert [a.cached for a in fleet.answers] == [0, 8, 4, 12]


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Conversation], dict[str, object]]:
    count = draw(st.integers(1, 8))
    conversations = []
    for index in range(count):
        shared = draw(st.integers(0, 20))
        pieces = [Piece((1,), shared)] if shared else []
        pieces.append(Piece((9, index), draw(st.integers(1, 24))))
        at = draw(st.integers(0, 400)) / 8
        conversations.append(single(index, at, pieces, draw(st.integers(1, 40))))
    conversations.sort(key=lambda each: each.at_s or 0.0)
    seqs = draw(st.integers(1, 5))
    options: dict[str, object] = {
        "seqs": seqs,
        "budget": seqs + draw(st.integers(0, 20)),
        "blocks": draw(st.sampled_from([24, 40, 200])),
        "context": 96,
        "windows": draw(st.sampled_from([(None,), (None,), (None, 8)])),
        "clock": EvenClock(
            1.0,
            0.125,
            draw(st.sampled_from([0.0, 1 / 64])),
            draw(st.sampled_from([(None,), (8,)])),
            draw(st.sampled_from([0.0, 0.125])),
        ),
        "front": draw(
            st.sampled_from(
                [
                    AT_ONCE,
                    FrontTimes(
                        request=0.5,
                        prompt_token=1 / 64,
                        answer=0.25,
                        chunk=1 / 32,
                        pause=draw(st.sampled_from([0.0, 0.5, 1.0, 4.0])),
                        longest_pause=8.0,
                        step=0.125,
                        sequence=0.125,
                        lost_request=0.25,
                        handled=draw(st.sampled_from([0.0, 0.75])),
                        slower=draw(st.sampled_from([0.0, 0.5])),
                    ),
                ]
            )
        ),
    }
    return conversations, options


@settings(max_examples=60, deadline=None)
@given(loads())
def test_steps_at_once_are_those_one_by_one(
    drawn: tuple[list[Conversation], dict[str, object]],
) -> None:
    conversations, options = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front_end, "TIMER_S", 0.25)
        many = played(setup_of(**options), conversations)  # type: ignore[arg-type]
        patch.setattr(Scheduler, "steady_steps", lambda self, limit: 0)
        one = played(setup_of(**options), conversations)  # type: ignore[arg-type]
    assert seen(many) == seen(one)
    for made, single_steps in zip(many.replicas, one.replicas, strict=True):
        assert made.front.gaps.summary() == single_steps.front.gaps.summary()
        assert made.scheduler.stats() == single_steps.scheduler.stats()
    served: list[Answer] = [a for a in many.answers if a.error is None]
    assert all(a.tokens == a.asked.output for a in served)
    assert made.scheduler.stats().tokens_generated == sum(a.asked.output for a in served)
