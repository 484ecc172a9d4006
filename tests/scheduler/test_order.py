"""Who goes first within a step, who waits, and who loses its blocks to whom."""

from __future__ import annotations

import random

from support.scheduler_loop import VOCAB, check_complete, make_loop, request

from penstock.scheduler.sequence import Status


def test_decodes_go_before_a_long_prefill_and_are_not_stalled_by_it() -> None:
    loop = make_loop(num_blocks=200, budget=8, context=400)
    short = request("short", [1, 2, 3], max_tokens=30)
    loop.scheduler.add(short)
    loop.step()
    long = request("long", list(range(40)) * 4, max_tokens=2)
    loop.scheduler.add(long)
    tokens_per_step = []
    while short.status is Status.RUNNING:
        before = short.num_output_tokens
        loop.step()
        tokens_per_step.append(short.num_output_tokens - before)
    assert set(tokens_per_step) == {1}
    loop.run()
    check_complete(loop, [short, long])


def test_first_come_first_served_within_priority() -> None:
    loop = make_loop(seqs=1)
    leaders = [request(f"r{i}", [i], priority=p) for i, p in enumerate([1, 0, 1, 0, -1])]
    for leader in leaders:
        loop.scheduler.add(leader)
    loop.run()
    assert [name for name, _ in loop.finished] == ["r4", "r1", "r3", "r0", "r2"]


def test_the_latest_of_the_lowest_priority_is_preempted_and_returns_to_its_place() -> None:
    loop = make_loop(num_blocks=8, seqs=2, budget=32, context=32, prefix=False)
    first = request("first", list(range(8)), max_tokens=20)
    urgent = request("urgent", list(range(4)), max_tokens=20, priority=-1)
    loop.scheduler.add(first)
    loop.step()
    loop.scheduler.add(urgent)
    late = request("late", [9], max_tokens=20)
    while loop.scheduler.stats().preemptions == 0:
        loop.step()
        if urgent.status is Status.RUNNING and late.arrival < 0:
            loop.scheduler.add(late)
    assert first.status is Status.WAITING
    assert first.num_computed == 0
    assert first.num_output_tokens > 0
    assert loop.scheduler.waiting == [first, late]
    loop.run()
    check_complete(loop, [first, urgent, late])


def test_nobody_overtakes_a_request_that_does_not_fit_yet() -> None:
    loop = make_loop(num_blocks=8, seqs=4, budget=32, context=32)
    leaders = [
        request("a", list(range(16)), max_tokens=10),
        request("big", list(range(20, 40)), max_tokens=4),
        request("small", [1], max_tokens=1),
    ]
    for leader in leaders:
        loop.scheduler.add(leader)
    loop.run()
    assert [name for name, _ in loop.finished] == ["a", "small", "big"]  # small ends sooner
    firsts = list(dict.fromkeys(name for name, _ in loop.outputs))
    assert firsts.index("small") >= firsts.index("big")


def test_an_urgent_prefill_short_of_blocks_robs_nobody_in_the_step_and_is_not_robbed() -> None:
    loop = make_loop(num_blocks=78, seqs=5, budget=20, context=78, size=1, prefix=False)
    others = [request(f"r{i}", [i], max_tokens=40) for i in range(2)]
    for leader in others:
        loop.scheduler.add(leader)
    loop.step()
    urgent = request("urgent", [3] * 72, max_tokens=2, priority=-1)
    small = request("small", [4], max_tokens=1)
    loop.scheduler.add(urgent)
    for _ in range(3):  # 18 tokens each: two of the budget of 20 go to the others
        loop.step()
    loop.scheduler.add(small)
    assert loop.scheduler.cache.num_free_blocks == 78 - 3 * 18 - 2 * 4
    loop.step()  # the others take two, which leaves 14 of the 18 that it wants
    assert (urgent.num_computed, [s.num_output_tokens for s in others]) == (68, [5, 5])
    assert small.status is Status.WAITING
    loop.step()  # the second gives way to the first, and then to the urgent one
    assert (urgent.num_output_tokens, [s.num_output_tokens for s in others]) == (1, [6, 5])
    assert [s.status for s in (small, *others)] == [
        Status.WAITING, Status.RUNNING, Status.WAITING,
    ]  # fmt: skip
    loop.run()
    check_complete(loop, [urgent, small, *others])


def test_a_tiny_cache_with_forks_preempts_and_still_gives_the_same_tokens() -> None:
    loop = make_loop(num_blocks=14, seqs=8, budget=24, context=48)
    rng = random.Random(5)
    stem = [rng.randrange(VOCAB) for _ in range(12)]
    leaders = [
        request(f"r{i}", stem[: 3 * i % 13] + [i], seed=i, n=1 + i % 4, max_tokens=30)
        for i in range(10)
    ]
    for leader in leaders:
        loop.scheduler.add(leader)
    loop.run()
    check_complete(loop, leaders)
    assert loop.scheduler.stats().preemptions > 5
