from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_model import Loop, reference
from support.scheduler_loop import (
    EOS,
    VOCAB,
    check_complete,
    expected,
    make_loop,
    request,
)

import penstock
from penstock.cache.kv_cache import KvCache
from penstock.errors import ConfigError, RequestError
from penstock.interface.messages import FinishReason, Tenant
from penstock.pooling.params import PoolingParams
from penstock.sampling.draws import sequence_key
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import Sequence, Status

TENANTS = [Tenant(), Tenant("a"), Tenant("b", 2.0), Tenant("b", 2.0, "u"), Tenant("c", 0.5)]
POOLINGS = [PoolingParams(pooling=kind, normalize=False) for kind in ("last", "mean", "cls")]


def test_one_request() -> None:
    loop = make_loop()
    leader = request("a", list(range(10, 40)))
    loop.scheduler.add(leader)
    loop.run()
    check_complete(loop, [leader])
    assert loop.steps == 2 + 4  # 30 tokens of prompt at 16 a step; the second gives a token
    stats = loop.scheduler.stats()
    assert (stats.steps, stats.tokens_computed, stats.tokens_generated) == (6, 34, 5)
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


# --- everything at random ---------------------------------------------------------------------


@dataclass
class Plan:
    """A random scenario: the engine's limits, and what happens when."""

    loop: Loop
    arrivals: list[tuple[int, Sequence]]
    aborts: dict[int, list[tuple[str, bool]]]  # step: (name, between schedule and update)


@st.composite
def plans(draw: st.DrawFn, ahead: bool) -> Plan:
    size = draw(st.sampled_from([1, 2, 4]))
    seqs = draw(st.integers(1, 6))
    budget = seqs + draw(st.integers(0, 12))
    context = draw(st.integers(8, 40))
    blocks = -(-context // size) + draw(st.integers(0, 12))
    loop = make_loop(blocks, seqs, budget, context, size, draw(st.booleans()), ahead)
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


@settings(max_examples=150, deadline=None)
@given(plans(ahead=False))
def test_whatever_happens_every_request_gets_its_own_tokens(plan: Plan) -> None:
    run(plan)


@settings(max_examples=150, deadline=None)
@given(plans(ahead=True))
def test_and_the_same_tokens_where_steps_are_scheduled_ahead(plan: Plan) -> None:
    run(plan)


def run(plan: Plan) -> None:
    loop, scheduler = plan.loop, plan.loop.scheduler
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
                assert got == expected(leader, index)[0][: len(got)]
    check_complete(loop, [s for _, s in plan.arrivals if s.request_id not in aborted])


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


# --- order, budget, fairness --------------------------------------------------------------------


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


# --- prefixes -------------------------------------------------------------------------------------


def test_a_prefix_is_found_but_never_the_whole_prompt() -> None:
    loop = make_loop()
    prompt = list(range(16))
    for name in "ab":
        leader = request(name, prompt)
        loop.scheduler.add(leader)
        loop.run()
    assert leader.num_cached_tokens == 12
    stats = loop.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (32, 12)
    assert loop.outputs["a", 0] == loop.outputs["b", 0]


def test_another_salt_finds_nothing() -> None:
    loop = make_loop()
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        leader = request(name, list(range(16)), salt=salt)
        loop.scheduler.add(leader)
        loop.run()
        assert leader.num_cached_tokens == (12 if name == "c" else 0)


def test_output_is_found_by_the_next_turn() -> None:
    loop = make_loop()
    first = request("a", list(range(10)), max_tokens=9)
    loop.scheduler.add(first)
    loop.run()
    second = request("b", [*first.token_ids, 1, 2])
    loop.scheduler.add(second)
    loop.run()
    assert second.num_cached_tokens == 16  # 18 of the 19 were computed
    check_complete(loop, [first, second])


def test_a_block_is_not_found_before_the_step_that_writes_it_ran() -> None:
    loop = make_loop(budget=64)
    leaders = [request(name, list(range(20))) for name in "ab"]
    for leader in leaders:
        loop.scheduler.add(leader)
    loop.run()
    assert [s.num_cached_tokens for s in leaders] == [0, 0]
    check_complete(loop, leaders)


def test_prompt_logprobs_see_the_whole_prompt_even_when_it_is_cached() -> None:
    loop = make_loop(budget=8)
    prompt = list(range(30))
    plain = request("plain", prompt)
    loop.scheduler.add(plain)
    loop.run()
    detailed = request("detailed", prompt, prompt_logprobs=0, n=3)
    loop.scheduler.add(detailed)
    loop.run()
    assert detailed.num_cached_tokens == 0
    assert len(loop.prompt_rows["detailed"]) == 29
    check_complete(loop, [plain, detailed])
    assert loop.scheduler.stats().prefix_queries == 30


# --- several sequences ----------------------------------------------------------------------------


def test_the_prompt_of_n_sequences_is_computed_once() -> None:
    loop = make_loop(seqs=8, prefix=False)
    leader = request("a", list(range(14)), n=5, max_tokens=6)
    loop.scheduler.add(leader)
    loop.run()
    check_complete(loop, [leader])
    assert loop.scheduler.stats().tokens_computed == 14 + 5 * 5
    assert len({tuple(loop.outputs["a", i]) for i in range(5)}) == 5


def test_surplus_sequences_wait_and_lose_no_token() -> None:
    loop = make_loop(seqs=2)
    leader = request("a", list(range(14)), n=7, max_tokens=4)
    loop.scheduler.add(leader)
    loop.step()
    assert [len(loop.outputs["a", i]) for i in range(7)] == [1] * 7
    assert len(loop.scheduler.waiting) == 5
    loop.run()
    check_complete(loop, [leader])


def test_sequences_that_end_with_their_first_token_leave_the_others() -> None:
    prompt = [3, 1, 2]
    first = [reference(prompt, sequence_key(1, i), VOCAB, 4)[0][0] for i in range(6)]
    loop = make_loop(seqs=3)
    leader = request("a", prompt, n=6, stop_token_ids=(first[0], first[4]))
    loop.scheduler.add(leader)
    loop.step()
    assert {("a", 0), ("a", 4)} <= set(loop.finished)
    assert leader.finish_reason is FinishReason.STOP
    assert leader.stop_reason == first[0]
    loop.run()
    assert len(loop.finished) == 6
    assert loop.scheduler.cache.num_used_blocks == 0


# --- ends -----------------------------------------------------------------------------------------


def _end(loop: Loop, leader: Sequence) -> tuple[int, FinishReason | None, int | None]:
    loop.scheduler.add(leader)
    loop.run()
    return leader.num_output_tokens, leader.finish_reason, leader.stop_reason


def test_how_sequences_end() -> None:
    prompt = [1, 2, 3]
    tokens = reference(prompt, sequence_key(1, 0), VOCAB, 60)[0]
    third = tokens[2]
    assert third not in tokens[:2]
    again = next(i for i in range(3, 57) if tokens[i] == third) + 1
    loop = make_loop()
    length, stop = FinishReason.LENGTH, FinishReason.STOP
    assert _end(loop, request("a", prompt, max_tokens=9)) == (9, length, None)
    assert _end(loop, request("b", prompt, max_tokens=3, stop_token_ids=(third,))) == (
        3, stop, third,
    )  # fmt: skip
    kinds = {"max_tokens": 60, "stop_token_ids": (third,)}
    assert _end(loop, request("c", prompt, min_tokens=2, **kinds)) == (3, stop, third)
    assert _end(loop, request("d", prompt, min_tokens=3, **kinds)) == (again, stop, third)
    assert _end(loop, request("e", prompt, max_tokens=None)) == (125, length, None)
    assert _end(loop, request("f", prompt, max_tokens=125)) == (125, length, None)


def test_eos_ends_unless_ignored() -> None:
    prompt = next(
        [p] for p in range(99) if EOS in reference([p], sequence_key(1, 0), VOCAB, 30)[0][3:20]
    )  # fmt: skip
    at = reference(prompt, sequence_key(1, 0), VOCAB, 30)[0].index(EOS) + 1
    loop = make_loop()
    kinds = {"max_tokens": 29, "stop_token_ids": (EOS,)}
    assert _end(loop, request("a", prompt, ignore_eos=False, **kinds)) == (
        at, FinishReason.STOP, None,
    )  # fmt: skip
    assert _end(loop, request("b", prompt, **kinds)) == (at, FinishReason.STOP, EOS)
    assert _end(loop, request("c", prompt, max_tokens=29)) == (29, FinishReason.LENGTH, None)


def test_a_step_may_bring_several_tokens_and_the_end_cuts_them() -> None:
    leader = request("a", [1], max_tokens=10, stop_token_ids=(5,))
    leader.max_total_tokens = 11
    assert leader.append([3, 4]) == [3, 4]
    assert leader.append([6, 5, 7]) == [6, 5]
    assert leader.output_token_ids.tolist() == [3, 4, 6, 5]


# --- refusals and aborts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leader", "words"),
    [
        (request("x", []), "empty"),
        (request("x", [1] * 128), "must be at least 1 tokens shorter"),
        (request("x", [1] * 3, max_tokens=126), "lower max_tokens to at most 125, leave it out"),
        (request("x", [1] * 3, max_tokens=10**30), "lower max_tokens to at most 125"),
        (request("x", [1] * 3, max_tokens=None, min_tokens=126), "min_tokens to at most 125 or"),
        (request("x", [1] * 20, max_tokens=None), "need 32 cache blocks of 4 tokens.*are 8"),
        (request("x", [1] * 20, max_tokens=14), "20 prompt and up to 14 output tokens need 9 "),
        (request("taken", [1]), "in use"),
    ],
)
def test_what_cannot_be_served_is_refused(leader: Sequence, words: str) -> None:
    loop = make_loop(num_blocks=8)
    loop.scheduler.add(request("taken", [1]))
    with pytest.raises(RequestError, match=words):
        loop.scheduler.add(leader)
    loop.run()
    assert list(loop.finished) == [("taken", 0)]


def test_the_largest_request_that_fits_is_served() -> None:
    loop = make_loop(num_blocks=8)
    leader = request("x", [1] * 20, max_tokens=13)  # 32 slots: the last token needs none
    loop.scheduler.add(leader)
    loop.run()
    check_complete(loop, [leader])


def test_one_sequence_of_several_can_be_aborted_once_it_has_output() -> None:
    loop = make_loop(seqs=2, budget=4)
    leader = request("a", list(range(10)), n=3, max_tokens=8)
    loop.scheduler.add(leader)
    loop.step()
    with pytest.raises(ValueError, match="no output yet"):
        loop.scheduler.abort("a", 0)
    while not loop.outputs:
        loop.step()
    for index in (0, 2):  # the one runs, the other waits for a place
        assert [s.index for s in loop.scheduler.abort("a", index)] == [index]
        loop.scheduler.check_integrity()
    assert loop.scheduler.abort("a", 0) == []
    loop.run()
    assert list(loop.finished) == [("a", 1)]
    assert loop.outputs["a", 1] == expected(leader, 1)[0]
    assert loop.scheduler.abort("a") == []
    assert loop.scheduler.abort("unknown") == []


def test_limits_that_contradict_each_other_are_refused() -> None:
    cache = KvCache(4, 4)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        Scheduler(cache, max_num_seqs=8, max_num_batched_tokens=7, max_model_len=16)
    with pytest.raises(ConfigError, match="at least 1"):
        Scheduler(cache, max_num_seqs=0, max_num_batched_tokens=7, max_model_len=16)


def test_update_refuses_samples_that_do_not_belong_to_the_step() -> None:
    loop = make_loop()
    loop.scheduler.add(request("a", [1, 2]))
    step = loop.scheduler.schedule()
    assert step is not None
    with pytest.raises(ValueError, match="2 samples for 1"):
        loop.scheduler.update(step, [[1], [2]])


def test_a_waste_count_sees_only_the_unfilled_part_of_last_blocks() -> None:
    loop = make_loop(seqs=4, budget=32)
    for i in range(3):
        loop.scheduler.add(request(f"r{i}", [i] * (5 + i), max_tokens=8))
    loop.step()
    stats = loop.scheduler.stats()
    assert (stats.kv_slots_allocated, stats.kv_slots_filled) == (24, 18)


def test_no_array_library_is_imported() -> None:
    code = "import sys, penstock.scheduler.scheduler; sys.exit('numpy' in sys.modules)"
    source = str(Path(penstock.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}).returncode == 0


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("prompt_rows", [1, 3, 8])
def test_prompts_that_want_logits_take_more_steps(prompt_rows: int, ahead: bool) -> None:
    """A step has no more rows of logits than there is room for, and all get what they get alone."""
    for seed in range(12):
        rng = random.Random(seed)
        loop = make_loop(num_blocks=24, ahead=ahead, prompt_rows=prompt_rows)
        schedule, most = loop.scheduler.schedule, 0

        def watched(schedule: Any = schedule) -> Any:
            nonlocal most
            step = schedule()
            if step is not None:
                told = sum(each.num_logits for each in step.sequences)
                assert told == step.num_logits
                most = max(most, step.num_logits)
            return step

        loop.scheduler.schedule = watched  # type: ignore[method-assign]
        leaders = []
        for i in range(9):
            prompt = [rng.randrange(8, VOCAB) for _ in range(rng.randrange(1, 40))]
            wants = rng.choice([None, 0, 2])
            leaders.append(request(f"r{i}", prompt, prompt_logprobs=wants, n=rng.choice([1, 1, 2])))
        for leader in leaders:
            loop.scheduler.add(leader)
            if rng.random() < 0.5:
                loop.step()
        loop.run()
        check_complete(loop, leaders)
        assert 0 < most <= 4 + prompt_rows
