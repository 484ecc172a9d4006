"""Several replicas: routing, conversations whose turns follow each other, bounds on open ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.simulated import EvenClock, played, setup_of, single

from penstock.bench.load.arrivals import Gamma
from penstock.bench.load.turn import Conversation, Piece, chain
from penstock.errors import ConfigError
from penstock.simulate.fleet import Fleet, Offered
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.routing import POLICIES

ROUTINGS = tuple(POLICIES)


def load(count: int = 60) -> list[Conversation]:
    return [
        single(i, i * 0.5, [Piece((1, i % 3), 12), Piece((2, i), 1 + i % 7)], 1 + i * 5 % 11)
        for i in range(count)
    ]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_request_is_served_once_and_the_same_again(routing: str) -> None:
    setup = setup_of(EvenClock(0.25, 0.0625), replicas=3, routing=routing)
    fleet, again = played(setup, load()), played(setup, load())
    assert len(fleet.answers) == 60
    assert all(a.error is None and a.tokens == a.asked.output for a in fleet.answers)
    assert sum(r.scheduler.stats().tokens_generated for r in fleet.replicas) == sum(
        a.asked.output for a in fleet.answers
    )
    times = [(a.first_s, a.last_s, a.cached) for a in fleet.answers]
    assert times == [(a.first_s, a.last_s, a.cached) for a in again.answers]
    assert all(replica.engine.work.steps for replica in fleet.replicas)


def test_the_fewest_open_requests_are_looked_for_at_the_time_of_arrival() -> None:
    # The first keeps its replica for 20 s; the others take 2 s each, one every 5 s.
    talks = [single(0, 0.0, 4, 20), *(single(i, 5.0 * i, 4, 2) for i in range(1, 4))]
    fleet = played(setup_of(replicas=2, routing="least-requests"), talks)
    assert [a.last_s for a in fleet.answers] == [20.0, 7.0, 12.0, 17.0]
    assert [r.scheduler.stats().tokens_generated for r in fleet.replicas] == [20, 6]


def test_prefixes_stay_where_they_are() -> None:
    spread = played(setup_of(EvenClock(0.01), replicas=3), load())
    kept = played(setup_of(EvenClock(0.01), replicas=3, routing="prefix"), load())
    found = [sum(a.cached for a in fleet.answers) for fleet in (spread, kept)]
    assert found[1] >= found[0]
    assert sum(a.cached > 0 for a in kept.answers) == 60 - 3


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="routing is one of round-robin, random"):
        Fleet(setup_of(replicas=2, routing="best"), Offered(None))


def test_turns_follow_answers_and_find_what_was_said() -> None:
    turns = chain([(Piece((3, 0), 9),), (Piece((3, 1), 2),)], [4, 3], [0.0, 2.5])
    fleet = played(setup_of(), [Conversation("talk", turns, 1.0)])
    first, second = fleet.answers
    assert (first.first_s, first.last_s) == (2.0, 5.0)
    assert second.asked.sent_s == 7.5
    assert second.asked.prompt == 9 + 4 + 2
    assert second.cached == 12  # of 13 tokens before: the last block is not full
    assert second.last_s == 7.5 + 3


def test_turns_behind_a_failed_one_are_not_sent() -> None:
    turns = chain([(Piece((3, 0), 300),), (Piece((3, 1), 2),)], [4, 3], [0.0, 2.5])
    fleet = played(setup_of(context=64), [Conversation("talk", turns, 1.0), single(1, 3.0, 4, 1)])
    assert [a.error for a in fleet.answers] == ["http 400", None]
    assert fleet.skipped == 1


@pytest.mark.parametrize("replicas", [1, 3])
def test_no_more_are_open_than_allowed(replicas: int) -> None:
    talks = [single(i, None, 4, 3 + i % 4) for i in range(20)]
    setup = setup_of(EvenClock(0.5), replicas=replicas, routing="least-tokens")
    fleet = played(setup, talks, Offered(None, concurrency=2))
    edges = sorted(
        [(a.asked.sent_s, 1) for a in fleet.answers] + [(a.end_s, -1) for a in fleet.answers]
    )
    open_now, most = 0, 0
    for _, change in edges:
        open_now += change
        most = max(most, open_now)
    assert most == 2
    assert len(fleet.answers) == 20


def test_texts_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs a trace"):
        played(setup_of(), [Conversation("0", chain([("a text",)], [3], [0.0]))])


def test_arrivals_are_those_of_a_load_test() -> None:
    offered = Offered(Gamma(2.0), conversations=5, seed=3)
    fleet = played(setup_of(EvenClock(0.125)), load(), offered)
    times = [a.asked.sent_s for a in fleet.answers]
    assert len(times) == 5
    assert times == sorted(times)
    again = played(setup_of(EvenClock(0.25)), load(), offered)
    assert times == [a.asked.sent_s for a in again.answers]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("bound", [None, 1000])
def test_requests_are_sent_at_their_times_whatever_runs_then(
    replicas: int, bound: int | None
) -> None:
    # Steps of a second: each of these arrives while one runs that ends an answer.
    turns = chain([(Piece((3, 0), 9),), (Piece((3, 1), 2),)], [1, 3], [0.0, 0.0])
    singles = [single(1 + i, 0.1 + 0.7 * i, 4, 1 + i % 3) for i in range(12)]
    talks = [Conversation("0", turns, 0.0), *singles]
    fleet = played(setup_of(replicas=replicas), talks, Offered(None, concurrency=bound))
    sent = {a.asked.conversation: a.asked.sent_s for a in fleet.answers if a.asked.conversation}
    assert sent == {i + 1: talk.at_s for i, talk in enumerate(singles)}
    second = next(a for a in fleet.answers if a.asked.turn == 1)
    first = next(a for a in fleet.answers if not a.asked.conversation)
    assert second.asked.sent_s == first.end_s


def test_a_place_is_free_when_its_answer_has_ended() -> None:
    # One that is due before the end waits for it; one that is due after it does not.
    talks = [single(0, 0.0, 4, 2), single(1, 0.5, 4, 1), single(2, 3.5, 4, 1)]
    fleet = played(setup_of(), talks, Offered(None, concurrency=1))
    assert [a.asked.sent_s for a in fleet.answers] == [0.0, 2.0, 3.5]


def test_the_load_is_over_by_its_time_not_by_the_end_of_a_step() -> None:
    talks = [single(0, 0.0, 4, 1), single(1, 0.2, 4, 1)]
    fleet = played(setup_of(), talks, Offered(None, concurrency=9, duration_s=0.5))
    assert [a.asked.sent_s for a in fleet.answers] == [0.0, 0.2]


def test_a_refusal_frees_its_place_when_its_client_knows() -> None:
    front = FrontTimes(request=0.25, prompt_token=0.0, answer=0.0, chunk=0.0, pause=0.0)
    setup = setup_of(seqs=1)
    setup = replace(setup, front=front, limits=replace(setup.limits, max_waiting=0))
    talks = [single(i, None, 4, 2) for i in range(50)]
    fleet = played(setup, talks, Offered(None, concurrency=2))
    refused = [a.asked.sent_s for a in fleet.answers if a.error is not None]
    assert refused == sorted(set(refused))
    assert sum(a.error is None for a in fleet.answers) > 3
