"""Tenants that share an engine: what each is served, and who gives way to whom."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduler_loop import check_complete, make_loop, request

from penstock.interface.messages import Tenant
from penstock.scheduler.fair_shares import FairShares
from penstock.scheduler.give_way import STEPS_BETWEEN
from penstock.scheduler.sequence import SequenceState, Status
from penstock.virtual_times import VirtualTimes

A, B, C = Tenant("a"), Tenant("b"), Tenant("c")


@given(
    st.lists(st.floats(0.1, 10.0), min_size=2, max_size=5),
    st.lists(st.integers(1, 100), min_size=50, max_size=200),
)
def test_who_always_waits_is_served_by_weight(weights: list[float], costs: list[int]) -> None:
    times = VirtualTimes()
    names = [f"{i}" for i in range(len(weights))]
    served = dict.fromkeys(names, 0)
    for name, weight in zip(names, weights, strict=True):
        times.enter(name, weight)
        times.wait(name)
    for cost in costs:
        name = min(names, key=times.time)
        times.let_in(name)
        times.serve(name, cost)
        served[name] += cost
        spread = [served[n] / w for n, w in zip(names, weights, strict=True)]
        assert max(spread) - min(spread) <= 100 / min(weights) + 1e-6
    times.check_integrity()


def test_having_asked_for_nothing_is_no_credit_and_taking_what_was_free_no_debt() -> None:
    times = VirtualTimes()
    for name in "ab":
        times.enter(name, 1.0)
    for _ in range(100):  # alone with all there is
        times.wait("a")
        times.let_in("a")
        times.wait_no_more("a")
        times.serve("a", 50)
    times.wait("b")
    assert times.time("a") - times.time("b") <= 50


def test_leaving_between_requests_is_no_way_around() -> None:
    """One that comes back for each request is where it was when it left."""
    times = VirtualTimes()
    times.enter("stays", 1.0)
    times.wait("stays")
    times.enter("returns", 1.0)
    times.serve("returns", 1000)
    times.leave("returns")
    times.enter("returns", 1.0)
    times.wait("returns")
    assert times.time("returns") == 1000
    assert times.time("stays") == 0


class Counted(float):
    """A number whose sums and quotients are of its kind, and which counts comparisons of them."""

    comparisons = 0

    def __add__(self, other: float) -> Counted:
        return Counted(float(self) + float(other))

    __radd__ = __add__

    def __rtruediv__(self, other: float) -> Counted:
        return Counted(float(other) / float(self))

    def __gt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return float(self) > float(other)

    def __lt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return float(self) < float(other)


def one_request(times: VirtualTimes, name: str, cost: float) -> None:
    times.enter(name, Counted(1.0))
    times.wait(name)
    times.let_in(name)
    times.wait_no_more(name)
    times.serve(name, cost)


@pytest.mark.parametrize("stays", [True, False], ids=["one stays", "they overlap"])
def test_names_that_never_come_back_cost_little(
    stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: what is kept of them is bounded, and the work of each is, too."""
    monkeypatch.setattr(Counted, "comparisons", 0)
    times, count, most = VirtualTimes(), 6000, 0
    if stays:
        one_request(times, "stays", 0.0)
    else:
        one_request(times, "0", 5.0)
    for i in range(1, count):
        one_request(times, f"{i}", 5.0 + i % 7)
        times.leave(f"{i}" if stays else f"{i - 1}")
        most = max(most, len(times._past))
    times.check_integrity()
    assert most <= 1100
    assert Counted.comparisons <= 40 * count


def test_what_a_crowd_leaves_behind_shrinks_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "comparisons", 0)
    times, count = VirtualTimes(), 6000
    for i in range(count):
        one_request(times, f"{i}", 1.0 + i)
    for i in range(count - 1):
        times.leave(f"{i}")
    assert len(times._past) <= 1100
    assert Counted.comparisons <= 40 * count
    times.check_integrity()


def test_who_had_most_is_remembered_among_ever_new_names() -> None:
    times = VirtualTimes()
    one_request(times, "stays", 0.0)
    one_request(times, "returns", 1000.0)
    times.leave("returns")
    for i in range(5000):
        one_request(times, f"{i}", 1.0)
        times.leave(f"{i}")
    times.enter("returns", 1.0)
    assert times.time("returns") == 1000.0


def test_users_divide_their_tenants_share_and_never_enlarge_it() -> None:
    shares = FairShares()
    many = [Tenant("many", 1.0, f"user {i}") for i in range(9)]
    one = Tenant("one")
    for tenant in (*many, one):
        shares.enter(tenant)
        shares.wait(tenant)
    served: dict[Tenant, int] = dict.fromkeys((*many, one), 0)
    for _ in range(1800):
        tenant = min(served, key=shares.rank)
        shares.let_in(tenant)
        shares.serve(tenant, 1)
        served[tenant] += 1
    assert served[one] == 900
    assert {served[each] for each in many} == {100}
    assert shares.contended
    for tenant in many:
        shares.wait_no_more(tenant)
        shares.leave(tenant)
    assert not shares.contended
    shares.check_integrity()


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=4),
    st.integers(1, 4),
    st.integers(0, 1000),
)
def test_tenants_with_a_backlog_are_served_by_weight(
    weights: list[float], seqs: int, seed: int
) -> None:
    """Whatever their requests' lengths are; the bound is what a full batch may come to."""
    rng = random.Random(seed)
    scheduler = make_loop(num_blocks=30, seqs=seqs, budget=seqs + 12, context=60).scheduler
    tenants = [Tenant(f"t{i}", weight) for i, weight in enumerate(weights)]
    left: dict[str, list[SequenceState]] = {}
    for tenant in tenants:
        size = rng.choice([2, 10, 30])
        left[tenant.name] = own = [
            request(
                f"{tenant.name}-{i}",
                [rng.randrange(8, 40) for _ in range(rng.randint(1, size))],
                tenant=tenant,
                max_tokens=rng.randint(1, 20),
            )
            for i in range(40)
        ]
        for leader in own:
            scheduler.add(leader)
    times = scheduler._queues.shares._tenants
    largest = 60 * (seqs + 1)
    while all(sum(s.status is Status.WAITING for s in own) > seqs for own in left.values()):
        step = scheduler.schedule()
        assert step is not None
        scheduler.update(step, [[9]] * len(step.samples))
        scheduler.check_integrity()
        now = [times.time(tenant.name) for tenant in tenants]
        assert max(now) - min(now) <= largest / min(weights)
    for _ in range(20_000):  # and nobody waits for ever
        step = scheduler.schedule()
        if step is None:
            break
        scheduler.update(step, [[9]] * len(step.samples))
    assert not scheduler.has_work


def crowd(count: int, tenant: Tenant, output: int = 40) -> list[SequenceState]:
    return [
        request(f"{tenant.name}{i}", [10 + i], seed=i, max_tokens=output, tenant=tenant)
        for i in range(count)
    ]


@pytest.mark.parametrize("ahead", [False, True])
def test_the_newest_of_who_has_too_much_gives_way_and_loses_nothing(ahead: bool) -> None:
    loop = make_loop(num_blocks=100, seqs=4, budget=16, ahead=ahead)
    many = crowd(8, A)
    for leader in many:
        loop.scheduler.add(leader)
    for _ in range(5):
        loop.step()
    assert loop.scheduler.running == many[:4]
    late = request("late", [40, 41], max_tokens=3, tenant=B)
    loop.scheduler.add(late)
    loop.step()
    assert late.status is Status.RUNNING
    assert many[3].status is Status.WAITING
    loop.run()
    check_complete(loop, [*many, late])
    ended = [name for name, _ in loop.finished]
    assert ended[0] == "late"
    assert loop.scheduler.stats().preemptions == 1


def test_nobody_gives_way_to_its_own_tenant_nor_to_one_that_has_its_share() -> None:
    loop = make_loop(num_blocks=100, seqs=4, budget=16)
    alone = [
        request(f"u{i}", [i], max_tokens=30, tenant=Tenant("a", 1.0, f"user {i}")) for i in range(9)
    ]
    for leader in alone:
        loop.scheduler.add(leader)
    loop.run()
    assert loop.scheduler.stats().preemptions == 0
    check_complete(loop, alone)
    first, second = crowd(6, A), crowd(6, B)
    for leader in (*first, *second):
        loop.scheduler.add(leader)
    loop.run()
    check_complete(loop, [*first, *second])
    assert loop.scheduler.stats().preemptions == 0, "each had two of four from the beginning"


def test_nor_one_of_a_better_priority() -> None:
    loop = make_loop(num_blocks=100, seqs=2, budget=16)
    urgent = [request(f"r{i}", [i], priority=-1, max_tokens=30, tenant=A) for i in range(2)]
    for leader in urgent:
        loop.scheduler.add(leader)
    loop.step()
    loop.scheduler.add(request("late", [9], tenant=B))
    for _ in range(20):
        loop.step()
    assert [s.tenant for s in loop.scheduler.running] == [A, A]
    loop.run()


def test_blocks_are_shared_as_places_are() -> None:
    loop = make_loop(num_blocks=12, seqs=8, budget=64, context=48, prefix=False)
    large = [request(f"a{i}", [i] * 17, seed=i, max_tokens=20, tenant=A) for i in range(4)]
    for leader in large:
        loop.scheduler.add(leader)
    loop.step()
    assert loop.scheduler.cache.num_free_blocks < 4
    late = request("late", [40] * 8, max_tokens=3, tenant=B)
    loop.scheduler.add(late)
    for _ in range(3 * STEPS_BETWEEN):
        loop.step()
    assert late.status is Status.FINISHED
    loop.run()
    check_complete(loop, [*large, late])


@pytest.mark.slow
def test_giving_way_is_rare() -> None:
    loop = make_loop(num_blocks=400, seqs=8, budget=32)
    leaders = crowd(20, A, 100)
    for leader in leaders:
        loop.scheduler.add(leader)
    for _ in range(4):
        loop.step()
    for tenant in (B, C):
        for leader in crowd(9, tenant, 60):
            leaders.append(leader)
            loop.scheduler.add(leader)
    before = loop.steps
    for _ in range(60):
        loop.step()
    assert 3 <= loop.scheduler.stats().preemptions <= 60 / STEPS_BETWEEN + 1
    assert loop.steps == before + 60
    counts = {t: sum(s.tenant == t for s in loop.scheduler.running) for t in (A, B, C)}
    assert min(counts.values()) >= 2
    loop.run()
    check_complete(loop, leaders)


def test_a_long_prompt_of_one_tenant_does_not_keep_the_others_prompts_waiting() -> None:
    loop = make_loop(num_blocks=400, seqs=4, budget=16, context=400)
    long = [request(f"long{i}", [i] * 300, max_tokens=2, tenant=A) for i in range(2)]
    for leader in long:
        loop.scheduler.add(leader)
    for _ in range(4):
        loop.step()
    short = request("short", [9] * 30, max_tokens=2, tenant=B)
    loop.scheduler.add(short)
    for _ in range(4):
        loop.step()
    assert short.status is Status.FINISHED
    loop.run()
    check_complete(loop, [*long, short])
