"""The router of ``penstock route`` before simulated replicas."""

from __future__ import annotations

import msgspec
import pytest
from support.simulated import EvenClock, played, setup_of, single

from penstock.bench.load.turn import Conversation, Piece
from penstock.routing.query import split_keys
from penstock.simulate.fleet import Fleet


def talks() -> list[Conversation]:
    """Forty prompts, of which five begin alike each, one after the other."""
    return [
        single(i, i * 2.0, [Piece((1, i % 8), 40), Piece((2, i), 3)], 2 + i % 3) for i in range(40)
    ]


def found(fleet: Fleet) -> int:
    return sum(answer.cached for answer in fleet.answers)


def test_by_cost_each_beginning_is_computed_once() -> None:
    fleet = played(setup_of(EvenClock(0.01), replicas=3, routing="cost"), talks())
    assert sum(answer.cached > 0 for answer in fleet.answers) == 40 - 8
    assert all(replica.engine.work.steps for replica in fleet.replicas)
    for routing in ("round-robin", "random", "least-requests"):
        other = played(setup_of(EvenClock(0.01), replicas=3, routing=routing), talks())
        assert found(other) < found(fleet)


@pytest.mark.parametrize("routing", ["cost", "threshold"])
def test_its_books_are_those_of_the_caches(routing: str) -> None:
    fleet = played(setup_of(EvenClock(0.25), replicas=3, routing=routing), talks())
    router = fleet._router._router  # type: ignore[attr-defined]
    last = msgspec.structs.replace(fleet.answers[-1].asked, sent_s=1e9)
    fleet._router.choose(last, fleet)
    for number, replica in enumerate(fleet.replicas):
        held = set(replica.scheduler.cache._index.keys())
        assert set(split_keys(router.reported(number).keys())) == held
        assert router.loads.requests.level(number) == replica.requests == 0
        assert router.loads.work.level(number) == 0
