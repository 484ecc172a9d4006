"""The sets of a fleet's replicas, which are kept, beside a look at each replica."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.router.fleet import Fleet
from penstock.router.options import RouterOptions
from penstock.router.replica import Member, Replica
from penstock.router.sets import ReplicaSets

MODELS = (None, "a", "b")
CHANGES = st.one_of(
    st.tuples(st.just("state"), st.sampled_from(["ready", "draining", "down"])),
    st.tuples(st.just("models"), st.sampled_from([None, frozenset("a"), frozenset("ab")])),
    st.tuples(st.just("is_late"), st.booleans()),
    st.tuples(st.just("synchronized"), st.booleans()),
    st.tuples(st.just("joined"), st.booleans()),
    st.tuples(st.just("removed"), st.none()),
    st.tuples(st.just("added"), st.none()),
)


def change(fleet: Fleet, replica: Replica, what: str, value: Any, step: int) -> None:
    if what == "joined":
        fleet.joined(replica, value)
    elif what == "removed":
        fleet.remove(replica)
    elif what == "added":
        fleet.add(Member(f"http://more-{step}"))
    elif what == "state":
        fleet.now(replica, value)
    else:
        setattr(replica, what, value)


def seen(fleet: Fleet) -> list[int]:
    def numbers(replicas: list[Replica]) -> int:
        return sum(1 << replica.number for replica in replicas if replica.number is not None)

    late = [replica for replica in fleet.replicas if replica.is_late]
    followed = [replica for replica in fleet.replicas if replica.synchronized]
    found = [numbers(late), numbers(followed)]
    for model in MODELS:
        able = [r for r in fleet.replicas if r.state == "ready" and r.serves(model)]
        found.append(numbers(able))
        on_time = [replica for replica in able if replica.number is not None]
        found.append(numbers([r for r in on_time if not r.is_late]) or numbers(on_time))
    return found


def told(fleet: Fleet) -> list[int]:
    sets = fleet.sets
    found = [sets.late, sets.synchronized]
    for model in MODELS:
        found += [sets.able(model), fleet.ready(model)]
    return found


@given(st.lists(st.tuples(st.integers(0, 7), CHANGES), max_size=30))
def test_they_are_those_of_each_replica(changes: list[tuple[int, tuple[str, Any]]]) -> None:
    fleet = Fleet(RouterOptions())
    for number in range(4):
        fleet.add(Member(f"http://{number}"))
    assert told(fleet) == seen(fleet)
    for step, (place, (what, value)) in enumerate(changes):
        if fleet.replicas:
            replica = fleet.replicas[place % len(fleet.replicas)]
            change(fleet, replica, what, value, step)
        assert told(fleet) == seen(fleet)
    fleet.close()


def test_no_more_of_them_are_kept_than_there_may_be() -> None:
    looks = 0

    class Replicas(list[Replica]):
        def __iter__(self) -> Any:
            nonlocal looks
            looks += 1
            return super().__iter__()

    sets = ReplicaSets(Replicas())
    for _ in range(3):
        assert sets.able("a") == 0
    assert looks == 1  # it is kept
    for number in range(5000):
        sets.able(f"model-{number}")
    assert len(sets._kept) <= 1024
