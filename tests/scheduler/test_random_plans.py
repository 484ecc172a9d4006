"""Whatever arrives and is aborted when, every request gets the tokens that it gets alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_model import Loop, Windows
from support.scheduler_loop import VOCAB, check_complete, expected, make_loop, request

from penstock.cache.geometry import Chunk
from penstock.cache.kv_cache import KvCache
from penstock.cache.state_slots import StateLimits
from penstock.interface.messages import FinishReason, Tenant
from penstock.pooling.params import PoolingParams
from penstock.scheduler.sequence import SequenceState, Status

WINDOWS: st.SearchStrategy[Windows] = st.one_of(
    st.just((None,)),
    st.integers(2, 20).map(lambda window: (window,)),
    st.integers(1, 20).map(lambda size: (Chunk(size),)),
    st.lists(st.integers(2, 20) | st.builds(Chunk, st.integers(1, 20)), min_size=1, max_size=3).map(
        lambda rest: (None, *rest)
    ),
)
TENANTS = [Tenant(), Tenant("a"), Tenant("b", 2.0), Tenant("b", 2.0, "u"), Tenant("c", 0.5)]
POOLINGS = [PoolingParams(pooling=kind, normalize=False) for kind in ("last", "mean", "cls")]


@dataclass
class Plan:
    """A random scenario: the engine's limits, and what happens when."""

    loop: Loop
    arrivals: list[tuple[int, SequenceState]]
    aborts: dict[int, list[tuple[str, bool]]]  # step: (name, between schedule and update)


@st.composite
def plans(draw: st.DrawFn, ahead: bool) -> Plan:
    size = draw(st.sampled_from([1, 2, 4]))
    seqs = draw(st.integers(1, 6))
    budget = seqs + draw(st.integers(0, 12))
    context = draw(st.integers(8, 40))
    windows = draw(WINDOWS)
    least = KvCache(1, size, windows=windows).blocks_for(context)
    blocks = least + draw(st.integers(0, 12)) * len(windows)
    states = draw(
        st.none()
        | st.builds(
            StateLimits,
            st.integers(seqs, seqs + 8),
            st.just(seqs),
            st.integers(1, 4).map(size.__mul__),
        )
    )
    prefix = draw(st.booleans())
    loop = make_loop(
        blocks, seqs, budget, context, size, prefix, ahead, windows=windows, states=states
    )
    stems = [[draw(st.integers(0, 3)) for _ in range(context)] for _ in range(2)]
    arrivals = []
    tenants = draw(st.sampled_from([TENANTS[:1], TENANTS[:2], TENANTS]))
    aborts: dict[int, list[tuple[str, bool]]] = {}
    for i in range(draw(st.integers(1, 9))):
        shared = draw(st.integers(0, context - 2))
        prompt = draw(st.sampled_from(stems))[:shared] + [draw(st.integers(4, VOCAB - 1))]
        at = draw(st.integers(0, 15))
        pooling = draw(st.sampled_from([None, None, None, *POOLINGS]))
        leader = request(
            f"r{i}",
            prompt,
            seed=draw(st.integers(0, 3)),
            priority=draw(st.integers(-1, 1)),
            salt=draw(st.sampled_from(["", "", "s"])),
            tenant=draw(st.sampled_from(tenants)),
            pooling=pooling,
            n=1 if pooling else draw(st.sampled_from([1, 1, 1, 2, 3, 8])),
            max_tokens=draw(
                st.one_of(st.none(), st.integers(1, max(1, min(20, context - len(prompt)))))
            ),
            ignore_eos=draw(st.booleans()),
            prompt_logprobs=None if pooling else draw(st.sampled_from([None, None, 1])),
            runs_ahead=draw(st.integers(0, 3)) > 0,
        )
        arrivals.append((at, leader))
        if draw(st.integers(0, 3)) == 0:
            when = at + draw(st.integers(0, 12))
            aborts.setdefault(when, []).append((leader.request_id, draw(st.booleans())))
    return Plan(loop, arrivals, aborts)


@settings(max_examples=75, deadline=None)
@given(plans(ahead=False))
def test_whatever_happens_every_request_gets_its_own_tokens(plan: Plan) -> None:
    run(plan)


@pytest.mark.slow
@settings(max_examples=75, deadline=None)
@given(plans(ahead=True))
def test_and_the_same_tokens_where_steps_are_scheduled_ahead(plan: Plan) -> None:
    run(plan)


def run(plan: Plan) -> None:
    loop, scheduler = plan.loop, plan.loop.scheduler
    windows, states = scheduler.cache.windows, scheduler.cache.num_states[1] > 0
    aborted: set[str] = set()

    def abort(now: int, between: bool) -> None:
        for name, is_between in plan.aborts.get(now, []):
            if is_between == between:
                for sequence in scheduler.abort(name):
                    assert sequence.finish_reason is FinishReason.ABORT
                    assert sequence.status is Status.FINISHED
                    aborted.add(name)

    now = 0
    while now <= 40 or scheduler.has_work or loop.in_flight:
        for at, leader in plan.arrivals:
            if at == now:
                scheduler.add(leader)
        abort(now, between=False)
        abort_between = lambda now=now: abort(now, between=True)  # noqa: E731
        if loop.step(abort_between) is None:
            abort_between()
        now += 1
        assert now < 5000, "no end in sight"
    for _, leader in plan.arrivals:
        if leader.request_id in aborted:
            for index in range(leader.params.n):  # what came before the end is right
                got = loop.outputs.get((leader.request_id, index), [])
                assert got == expected(leader, index, windows, states)[0][: len(got)]
    check_complete(loop, [s for _, s in plan.arrivals if s.request_id not in aborted])
