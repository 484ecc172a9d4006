"""Steps that only decode: taken in at once, they leave the same books as one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_model import Windows
from support.scheduler_loop import request

from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import Chunk
from penstock.cache.kv_cache import KvCache
from penstock.interface.messages import FinishReason
from penstock.length_limits import LengthLimits
from penstock.scheduler.scheduler import Scheduler

TOKEN = 0


@dataclass
class Plan:
    """Limits, requests (arrival by step, prompt, output), and how many steps are taken at once."""

    seqs: int
    budget: int
    blocks: int
    windows: Windows
    prefix: bool
    requests: list[tuple[int, list[int], int]]
    strides: list[int]

    def scheduler(self) -> Scheduler:
        cache = KvCache(self.blocks, 4, windows=self.windows, enable_prefix_caching=self.prefix)
        return Scheduler(cache, self.seqs, self.budget, LengthLimits(64))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    seqs = draw(st.integers(1, 5))
    windows: Windows = draw(
        st.sampled_from([(None,), (None,), (6,), (None, 5), (Chunk(6),), (None, Chunk(8))])
    )
    least = KvCache(1, 4, windows=windows).blocks_for(64)
    shared = [draw(st.integers(1, 3)) for _ in range(40)]
    requests = []
    for i in range(draw(st.integers(1, 8))):
        prompt = shared[: draw(st.integers(0, 30))] + [10 + draw(st.integers(0, 1)) * i]
        requests.append((draw(st.integers(0, 30)), prompt, draw(st.integers(1, 30))))
    return Plan(
        seqs,
        seqs + draw(st.integers(0, 12)),
        least + draw(st.integers(0, 16)) * len(windows),
        windows,
        draw(st.booleans()),
        requests,
        draw(st.lists(st.integers(0, 12), min_size=1, max_size=12)),
    )


def step(scheduler: Scheduler) -> None:
    made = scheduler.schedule()
    assert made is not None
    scheduler.update(made, [[TOKEN]] * len(made.samples))


def table(each: BlockTable) -> Any:
    return (
        *([list(blocks) for blocks in each.blocks], each.forgotten, each.keys, each.num_committed),
        *(each.num_published, each.writable, each.due_at),
    )


def books(scheduler: Scheduler) -> Any:
    """All that a scheduler and its cache keep, to the last number of a block."""
    scheduler.check_integrity()
    cache = scheduler.cache
    pool, index = cache._pool, cache._index
    return (
        [
            (s.request_id, list(s.token_ids), s.num_computed, table(s.table))
            for s in scheduler.running
        ],
        [(s.request_id, list(s.token_ids)) for s in scheduler.waiting],
        (pool._blank, list(pool._kept), pool.ref_counts, index._blocks, index._keys, index._groups),
        (scheduler.stats(), scheduler._queues.shares.uncharged),
    )


@settings(max_examples=150, deadline=None)
@given(plans())
def test_the_books_are_those_of_single_steps(plan: Plan) -> None:
    one, many = plan.scheduler(), plan.scheduler()
    left = sorted(enumerate(plan.requests), key=lambda each: each[1][0])
    now, turn = 0, 0
    while left or many.has_work:
        while left and (left[0][1][0] <= now or not many.has_work):
            index, (_, prompt, output) = left.pop(0)
            for scheduler in (one, many):
                scheduler.add(request(f"r{index}", prompt, max_tokens=output))
        stride = plan.strides[turn % len(plan.strides)]
        turn += 1
        count = many.steady_steps(stride)
        assert 0 <= count <= stride
        if count:
            many.decode_steadily(count, TOKEN)
        else:
            count = 1
            step(many)
        for _ in range(count):
            step(one)
        now += count
        assert books(many) == books(one)


def test_many_steps_are_taken_at_once() -> None:
    scheduler = Scheduler(KvCache(64, 4), 4, 16, LengthLimits(128))
    for name in ("a", "b"):
        scheduler.add(request(name, [1, 2, 3], max_tokens=40 if name == "a" else 60))
    step(scheduler)  # both prompts, and a token each
    assert scheduler.steady_steps(1000) == 39  # the last of these ends the first
    assert scheduler.decode_steadily(20, TOKEN) == []
    (ended,) = scheduler.decode_steadily(19, TOKEN)
    assert (ended.request_id, ended.finish_reason) == ("a", FinishReason.LENGTH)
    assert [s.request_id for s in scheduler.running] == ["b"]
    assert scheduler.steady_steps(1000) == 20
    assert scheduler.steady_steps(7) == 7


def test_none_where_a_step_would_do_more() -> None:
    scheduler = Scheduler(KvCache(64, 4), 1, 4, LengthLimits(128))
    scheduler.add(request("a", [1] * 9, max_tokens=20))
    assert scheduler.steady_steps(10) == 0  # nothing runs yet
    step(scheduler)
    assert scheduler.steady_steps(10) == 0  # its prompt is being read
    step(scheduler)
    step(scheduler)
    scheduler.add(request("b", [1], max_tokens=2))
    assert scheduler.steady_steps(10) == 10  # there is no place for the one that waits
    scheduler.max_num_seqs = 2
    assert scheduler.steady_steps(10) == 0


def test_blocks_that_run_out_are_left_to_single_steps() -> None:
    scheduler = Scheduler(KvCache(8, 4), 2, 16, LengthLimits(32))
    for name in ("a", "b"):
        scheduler.add(request(name, [1] * 6, max_tokens=20))
    step(scheduler)
    count = scheduler.steady_steps(100)
    assert count == 10  # 16 of 16 slots each
    scheduler.decode_steadily(count, TOKEN)
    assert scheduler.steady_steps(100) == 0
    step(scheduler)
    assert scheduler.stats().preemptions == 1
