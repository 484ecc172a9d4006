"""Work on several streams is done as if it had been done in the order in which it was queued."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_plans import Chunk, step_of, tokens_of

from penstock.backends.cuda.block_order import BlockOrder, Touched
from penstock.cache.geometry import BLOCK_SIZE

NUM_BLOCKS = 8
LANES = ("steps", "out", "in")


@dataclass(eq=False)
class Work:
    """What is queued: it reads blocks, and writes what it has read and its number into others."""

    number: int
    lane: str
    reads: list[int]
    writes: list[int]
    after: list[Work] = field(default_factory=list)
    is_done: bool = False

    def query(self) -> bool:
        return self.is_done

    def run(self, memory: list[object]) -> object:
        seen = (self.number, tuple(memory[block] for block in self.reads))
        for block in self.writes:
            memory[block] = seen
        return seen


BLOCKS = st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=3)


@settings(max_examples=300, deadline=None)
@given(
    works=st.lists(st.tuples(st.sampled_from(LANES), BLOCKS, BLOCKS), min_size=1, max_size=14),
    choices=st.randoms(use_true_random=False),
)
def test_any_progress_of_the_lanes_is_that_of_one(works: list[Any], choices: Any) -> None:
    """Whatever the streams do while others are queued: each piece of work waits for those of its
    own lane, and for those that the order names."""
    order = BlockOrder[Work](NUM_BLOCKS)
    queues: dict[str, list[Work]] = {lane: [] for lane in LANES}
    memory: list[object] = [None] * NUM_BLOCKS
    seen: dict[int, object] = {}

    def advance() -> bool:
        ready = [
            queue[0]
            for queue in queues.values()
            if queue and all(w.is_done for w in queue[0].after)
        ]
        if not ready:
            return False
        work = choices.choice(ready)
        seen[work.number] = work.run(memory)
        work.is_done = True
        queues[work.lane].remove(work)
        return True

    for number, (lane, reads, writes) in enumerate(works):
        touched = Touched((np.array(reads, np.int32),), (np.array(writes, np.int32),))
        work = Work(number, lane, reads, writes)
        work.after = order.waits_for(lane, touched)
        order.queued(lane, touched, work)
        queues[lane].append(work)
        while choices.random() < 0.4 and advance():
            pass
    while advance():
        pass
    assert not any(queues.values()), "two lanes wait for each other"
    alone: list[object] = [None] * NUM_BLOCKS
    assert [seen[n] for n in range(len(works))] == [
        Work(n, lane, reads, writes).run(alone) for n, (lane, reads, writes) in enumerate(works)
    ]
    assert memory == alone


def test_nobody_waits_for_what_does_not_concern_it() -> None:
    order = BlockOrder[Work](NUM_BLOCKS)
    one, two = np.array([1, 2], np.int32), np.array([3], np.int32)
    copying = Work(0, "out", [1, 2], [])
    order.queued("out", Touched(reads=(one,)), copying)
    assert order.waits_for("steps", Touched(reads=(one,), writes=(two,))) == []
    assert order.waits_for("out", Touched(writes=(one,))) == []
    assert order.waits_for("steps", Touched(writes=(one,))) == [copying]
    copying.is_done = True
    assert order.waits_for("steps", Touched(writes=(one,))) == []
    assert len(order) == 0


def test_what_a_step_touches() -> None:
    chunks = [Chunk(tokens_of(1, 40), 33, 40, [7, 2]), Chunk(tokens_of(2, 3), 0, 3, [5])]
    moved = np.array([[6 * BLOCK_SIZE + 3, 4 * BLOCK_SIZE]], np.int32)
    touched = Touched.of(replace(step_of(chunks, [(0, 1)]), slot_moves=moved))
    assert {int(b) for each in touched.reads for b in each} == {7, 2, 5, 6, 0}
    assert {int(b) for each in touched.writes for b in each} == {2, 5, 4, 1}
