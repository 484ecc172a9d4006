"""Steps submitted one behind the other give what steps one after the other give."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fake_states import FakeStates
from support.overlap_executor import Deferred, HashExecutor
from support.overlapped import POISON, VOCAB, check, make_core, stateful, windowed
from support.stories import Arrival, arrivals, play, same

from penstock.cache.geometry import Chunk, Window
from penstock.engine.loader import EnginePlan


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(arrivals(), min_size=1, max_size=7),
    st.integers(1, 5),
    st.sampled_from([0, 7, 100]),
    st.sampled_from([5, 6, 8, 30]),
    st.booleans(),
    st.sampled_from(
        [
            (None, None),
            (None, None),
            (None, 33),
            (40, 40),
            (50, 3),
            (None, Chunk(40)),
            (Chunk(33), 9),
        ]
    ),
    st.sampled_from([None, None, 0, 2, 9]),
)
def test_whatever_happens_it_is_the_same(
    engine_plan: EnginePlan,
    arrivals: list[Arrival],
    seqs: int,
    more: int,
    num_blocks: int,
    draws_ahead: bool,
    windows: tuple[Window | None, Window | None],
    spare: int | None,
) -> None:
    """``spare``: state slots besides those of sequences, where layers keep states."""
    slots = 0 if spare is None else seqs + spare
    model = stateful(windowed(engine_plan, windows), slots)
    groups = model.plan.kv_groups.windows
    limits = {"max_num_seqs": seqs, "max_num_batched_tokens": seqs + more}
    stories = []
    for ahead in (True, False):
        states = FakeStates(slots, log=1) if slots else None
        inner = HashExecutor(num_blocks * len(groups), VOCAB, POISON, groups, states)
        executor = Deferred(inner, draws_ahead, failed_token=9) if ahead else inner
        core = make_core(model, executor, **limits)
        stories.append(play(core, arrivals, lambda c=core, i=inner: check(c, i)))  # type: ignore
        assert core.stats().kv_blocks_used == core.stats().states_used == 0
        core.close()
    same(*stories)
