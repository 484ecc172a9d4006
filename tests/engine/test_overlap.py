"""Steps in flight, one behind the other or with other sequences, give what steps one after the
other give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fake_states import FakeStates
from support.overlap_executor import Deferred, HashExecutor
from support.overlapped import POISON, VOCAB, check, make_core, stateful, windowed
from support.stories import Arrival, arrivals, play, same

from penstock.cache.geometry import Chunk, Window
from penstock.engine.loader import EnginePlan

FLIGHTS: Final[dict[str, Callable[[HashExecutor], Deferred]]] = {
    "behind": lambda inner: Deferred(inner, False, failed_token=9),
    "behind, drawn ahead": lambda inner: Deferred(inner, True, failed_token=9),
    "of two stages": lambda inner: Deferred(inner, depth=2, placeholders=False),
    "of three stages": lambda inner: Deferred(inner, depth=3, placeholders=False),
    "of five stages": lambda inner: Deferred(inner, depth=5, placeholders=False),
}

STORIES: Final = {
    "happening": st.lists(arrivals(), min_size=1, max_size=7),
    "flight": st.sampled_from(sorted(FLIGHTS)),
    "seqs": st.integers(1, 5),
    "more": st.sampled_from([0, 7, 100]),
    "num_blocks": st.sampled_from([5, 6, 8, 30]),
    "windows": st.sampled_from(
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
    "spare": st.sampled_from([None, None, 0, 2, 9]),
}


def story(
    engine_plan: EnginePlan,
    happening: list[Arrival],
    flight: str,
    seqs: int,
    more: int,
    num_blocks: int,
    windows: tuple[Window | None, Window | None],
    spare: int | None,
) -> None:
    """``spare``: state slots besides those of sequences, where layers keep states."""
    slots = 0 if spare is None else seqs + spare
    model = stateful(windowed(engine_plan, windows), slots)
    groups = model.plan.kv_groups.windows
    limits = {"max_num_seqs": seqs, "max_num_batched_tokens": seqs + more}
    stories = []
    for several in (True, False):
        states = FakeStates(slots, log=1) if slots else None
        inner = HashExecutor(num_blocks * len(groups), VOCAB, POISON, groups, states)
        core = make_core(model, FLIGHTS[flight](inner) if several else inner, **limits)
        stories.append(play(core, happening, lambda c=core, i=inner: check(c, i)))  # type: ignore
        assert core.stats().kv_blocks_used == core.stats().states_used == 0
        core.close()
    same(*stories)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.fixed_dictionaries(STORIES))
def test_what_happens_is_the_same(engine_plan: EnginePlan, drawn: dict[str, Any]) -> None:
    story(engine_plan, **drawn)


@pytest.mark.slow
@settings(max_examples=180, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.fixed_dictionaries(STORIES))
def test_whatever_happens_it_is_the_same(engine_plan: EnginePlan, drawn: dict[str, Any]) -> None:
    story(engine_plan, **drawn)
