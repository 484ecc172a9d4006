"""The load that is tuned for, in figures."""

from __future__ import annotations

import pytest

from penstock.bench.load.turn import Conversation, Piece, chain
from penstock.bench.load.workload import RecordedWorkload
from penstock.tune.load import TraceLoad


@pytest.mark.parametrize(("rate", "per_s"), [(None, 12 / 3.0), (2.0, 6.0)])
def test_requests_a_second_are_of_all_turns(rate: float | None, per_s: float) -> None:
    talks = tuple(
        Conversation(
            str(i), chain([(Piece((i, k), 5),) for k in range(3)], [4] * 3, [0.0] * 3), 1.0 * i
        )
        for i in range(4)
    )
    load = TraceLoad(RecordedWorkload("talks", talks, ()), (), rate)
    assert load.summary().requests == 12
    assert load.summary().per_s == per_s
