"""Counters go on where an engine takes another's place."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.interface.buckets import Buckets
from penstock.interface.messages import DraftStats, EngineStats, HandoverStats, TierStats
from penstock.server import engine_totals
from penstock.server.engine_totals import EngineTotals

BOUNDS = (1.0, 2.0)


def counted(value: float) -> Buckets:
    buckets = Buckets.empty(BOUNDS)
    buckets.add(value)
    return buckets


def stats(value: int) -> EngineStats:
    """Figures that are all this one, or made of it."""

    def filled(kind: Any, **others: Any) -> dict[str, Any]:
        plain = (field.name for field in msgspec.structs.fields(kind))
        return dict.fromkeys(plain, value) | others

    drafts = DraftStats(**filled(DraftStats, accepted_by_position=[value] * 3))
    handover = HandoverStats(**filled(HandoverStats, role="decode"))
    return EngineStats(
        **filled(
            EngineStats,
            step_seconds=counted(float(value)),
            step_tokens=counted(float(value)),
            drafts=drafts,
            handover=handover,
            tier=TierStats(**filled(TierStats, name="disk")),
            host_tier=TierStats(**filled(TierStats, name="host")),
            running_adapters=[str(value)],
            waiting_adapters=[],
        )
    )


def numbers(stats: EngineStats) -> dict[str, float]:
    """All that is counted in it, by name; of lists and histograms the sums."""
    found: dict[str, float] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Buckets):
            found[name] = value.count
        elif isinstance(value, msgspec.Struct):
            for each in value.__struct_fields__:
                if each not in engine_totals._NOW:
                    walk(getattr(value, each), f"{name}.{each}")
        elif isinstance(value, list):
            found[name] = sum(value)
        elif value is not None:
            found[name] = value

    walk(stats, "")
    return found


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.booleans()), max_size=30))
def test_no_counter_falls(told: list[tuple[int, int, bool]]) -> None:
    totals, now, engine = EngineTotals(), 0, 0
    last: dict[str, float] = {}
    for another, more, ends in told:
        if another == 0:
            engine, now = engine + 1, 0
        now += more
        totals.tell(engine, stats(now))
        if ends:
            totals.end()
            engine, now = engine + 1, 0
        known = totals.known
        assert known is not None
        counted_now = numbers(known)
        for name, value in last.items():
            assert counted_now[name] >= value, name
        last = counted_now


def test_what_is_now_is_that_of_the_engine_that_runs() -> None:
    totals = EngineTotals()
    totals.tell("one", stats(5))
    totals.tell("two", stats(3))
    known = totals.known
    assert known is not None
    assert (known.steps, known.running, known.running_adapters) == (8, 3, ["3"])
    assert known.drafts is not None
    assert known.drafts.accepted_by_position == [8, 8, 8]
    assert known.step_tokens is not None
    assert known.step_tokens.counts == [0, 0, 2]
    totals.end(restarts=2, ended_jobs={"time": 1})
    totals.end(restarts=1, ended_jobs={"time": 2})
    assert (totals.restarts, totals.ended_jobs["time"]) == (3, 3)
