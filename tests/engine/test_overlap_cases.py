"""What may happen to a sequence while a placeholder stands for its token, case by case."""

from __future__ import annotations

from array import array

import pytest
from support.overlap_executor import Deferred, HashExecutor
from support.overlapped import POISON, VOCAB, check, make_core

from penstock.engine.core import EngineCore
from penstock.engine.loader import EnginePlan, load
from penstock.interface.messages import EngineRequest, FinishReason, SequenceUpdate
from penstock.interface.step_builder import build_step
from penstock.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def inner() -> HashExecutor:
    return HashExecutor(20, VOCAB)


@pytest.fixture
def executor(inner: HashExecutor) -> Deferred:
    return Deferred(inner)


@pytest.fixture
def core(engine_plan: EnginePlan, executor: Deferred) -> EngineCore:
    return make_core(engine_plan, executor)


def add(
    core: EngineCore, prompt: list[int], params: SamplingParams = GREEDY, name: str = "r"
) -> None:
    core.add_request(EngineRequest(request_id=name, prompt_token_ids=prompt, params=params))


def finish(core: EngineCore) -> list[SequenceUpdate]:
    updates = []
    while core.has_work:
        updates += core.step()
        core.check_integrity()
    assert core.stats().kv_blocks_used == 0
    return updates


def tokens(updates: list[SequenceUpdate], name: str = "r", index: int = 0) -> list[int]:
    return [t for u in updates if (u.request_id, u.index) == (name, index) for t in u.token_ids]


def alone(engine_plan: EnginePlan, prompt: list[int], params: SamplingParams = GREEDY) -> list[int]:
    """The output without steps in flight."""
    core = make_core(engine_plan, HashExecutor(20, VOCAB))
    add(core, prompt, params)
    return tokens(finish(core))


def test_every_step_of_a_decode_is_submitted_behind_another_and_no_row_is_wasted(
    engine_plan: EnginePlan, core: EngineCore, executor: Deferred
) -> None:
    add(core, [3, 4, 5])
    assert core.step() == []  # submitted
    updates = finish(core)
    assert tokens(updates) == alone(engine_plan, [3, 4, 5])
    assert updates[-1].finish_reason is FinishReason.LENGTH
    assert (executor.submissions, executor.rows, executor.behind) == (8, 8, 7)
    assert core.stats().tokens_computed == 3 + 7


def test_a_context_is_filled_to_its_end_and_not_beyond(
    engine_plan: EnginePlan, core: EngineCore, executor: Deferred
) -> None:
    params = SamplingParams(temperature=0, ignore_eos=True)
    add(core, [3] * 140, params)
    assert len(tokens(finish(core))) == core.max_model_len - 140 == 20
    assert executor.rows == 20


def test_an_end_that_nobody_can_foresee_costs_one_row(
    engine_plan: EnginePlan, core: EngineCore, executor: Deferred
) -> None:
    expected = alone(engine_plan, [3, 4, 5])
    last = expected.index(expected[3]) + 1
    params = SamplingParams(temperature=0, stop_token_ids=(expected[3],), ignore_eos=True)
    add(core, [3, 4, 5], params)
    updates = []
    while not updates or updates[-1].finish_reason is None:
        updates += core.step()
    assert tokens(updates) == expected[:last]
    assert core.has_work
    assert core.stats().kv_blocks_used == 0
    assert core.step() == []
    assert not core.has_work
    assert executor.rows == last + 1


def test_what_a_wasted_row_wrote_is_not_found(
    engine_plan: EnginePlan, core: EngineCore, executor: Deferred, inner: HashExecutor
) -> None:
    prompt = list(range(3, 34))  # the first output token would fill the block
    (first,) = alone(engine_plan, prompt, SamplingParams(temperature=0, max_tokens=1))
    add(core, prompt, SamplingParams(temperature=0, stop_token_ids=(first,)))
    assert tokens(finish(core)) == [first]
    assert inner.model.memory[31][0] == first, "the row was not wasted"
    assert core._scheduler.cache.num_cached_blocks == 0
    check(core, inner)
    add(core, [*prompt, first, 5])
    (update, *_) = updates = finish(core)
    assert update.num_cached_tokens == 0
    assert tokens(updates) == alone(engine_plan, [*prompt, first, 5])
    # What was computed of known tokens is found.
    add(core, [*prompt, first, 6])
    assert finish(core)[0].num_cached_tokens == 32


def test_a_draw_that_must_be_told_the_last_token_waits_for_it(
    engine_plan: EnginePlan, inner: HashExecutor
) -> None:
    executor = Deferred(inner, draws_ahead=False)
    core = make_core(engine_plan, executor)
    params = SamplingParams(seed=1, repetition_penalty=1.2, max_tokens=9, ignore_eos=True)
    add(core, [3, 4], params)
    expected = alone(engine_plan, [3, 4], params)
    assert tokens(finish(core)) == expected
    assert (executor.submissions, executor.behind) == (9, 0)
    add(core, [3, 4], params, "told")
    add(core, [3, 4], GREEDY, "greedy")
    updates = finish(core)
    assert tokens(updates, "told") == expected
    assert tokens(updates, "greedy") == alone(engine_plan, [3, 4])
    assert executor.behind >= 7


def test_an_abort_in_flight_frees_at_once_and_leaves_nothing(
    engine_plan: EnginePlan, core: EngineCore, inner: HashExecutor
) -> None:
    add(core, list(range(3, 45)), name="gone")
    add(core, [3, 4], name="kept")
    core.step()
    updates = core.step()
    (ended,) = core.abort(["gone"])
    assert ended.finish_reason is FinishReason.ABORT
    assert core.stats().kv_blocks_used == 1
    add(core, [9] * 40, name="next")  # gets the blocks that a step in flight writes to
    updates += finish(core)
    assert len(tokens(updates, "gone")) == 1
    assert tokens(updates, "kept") == alone(engine_plan, [3, 4])
    assert tokens(updates, "next") == alone(engine_plan, [9] * 40)
    check(core, inner)


def test_the_error_of_a_request_is_not_put_on_another_of_its_id(
    engine_plan: EnginePlan,
) -> None:
    core = make_core(engine_plan, Deferred(HashExecutor(20, VOCAB, POISON)))
    params = SamplingParams(temperature=0, max_tokens=8, prompt_logprobs=1, ignore_eos=True)
    for bad in ([3, POISON], [POISON, 3]):  # a row to sample from, a row of the prompt
        add(core, bad, params)
        core.step()
        core.abort(["r"])
        add(core, [3, 4], params)
        updates = finish(core)
        assert tokens(updates) == alone(engine_plan, [3, 4])
        assert len(updates[0].prompt_logprobs or []) == 2


def test_a_failed_row_ends_its_own_request_whatever_was_submitted_behind_it(
    engine_plan: EnginePlan,
) -> None:
    executor = Deferred(HashExecutor(20, VOCAB, POISON), failed_token=POISON)
    core = make_core(engine_plan, executor)
    add(core, [3, POISON], name="ill")
    add(core, [3, 4], name="well")
    updates = finish(core)
    (ill,) = [u for u in updates if u.request_id == "ill"]
    assert ill.finish_reason is FinishReason.ERROR
    assert "NaN" in (ill.error or "")
    assert tokens(updates, "well") == alone(engine_plan, [3, 4])


@pytest.mark.parametrize("seqs", [2, 8])
def test_sequences_of_one_prompt_follow_it_in_flight(
    engine_plan: EnginePlan, inner: HashExecutor, executor: Deferred, seqs: int
) -> None:
    params = SamplingParams(n=5, seed=4, max_tokens=6, prompt_logprobs=0, logprobs=1)
    outputs = []
    for each in (executor, HashExecutor(20, VOCAB)):
        core = make_core(engine_plan, each, max_num_seqs=seqs)
        add(core, list(range(3, 50)), params)
        updates = finish(core)
        assert updates[0].index == 0
        assert len(updates[0].prompt_logprobs or []) == 47
        outputs.append(
            [[(u.token_ids, u.logprobs) for u in updates if u.index == i] for i in range(5)]
        )
    assert outputs[0] == outputs[1]
    if seqs == 8:  # the second step is submitted before the prompt's tokens are known
        assert executor.submissions == 6


def test_a_sequence_is_preempted_while_its_token_is_a_placeholder(
    engine_plan: EnginePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third, in its second block, when the second wants its fourth."""
    core = make_core(engine_plan, Deferred(HashExecutor(8, VOCAB)))
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    prompts = {"a": [3] * 40, "b": [4] * 50, "c": [5] * 3}
    for name, prompt in prompts.items():
        add(core, prompt, params, name)
    queues = core._scheduler._queues
    last_tokens = []
    wait = queues.wait
    monkeypatch.setattr(queues, "wait", lambda s: (last_tokens.append(s.token_ids[-1]), wait(s)))
    updates = finish(core)
    assert core.stats().preemptions == len(last_tokens) > 0
    assert min(last_tokens) < 0
    for name, prompt in prompts.items():
        assert tokens(updates, name) == alone(engine_plan, prompt, params)


def test_a_real_plan_gives_the_same_bits(engine_plan: EnginePlan) -> None:
    params = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=20, logprobs=2, prompt_logprobs=1)
        for i in range(4)
    ]
    outputs = []
    for wrap in (Deferred, lambda executor: executor):
        core = make_core(
            engine_plan, wrap(load(engine_plan)), max_num_seqs=4, max_num_batched_tokens=24
        )
        for i, each in enumerate(params):
            add(core, list(range(3, 30 + i)), each, f"{i}")
        updates = finish(core)
        outputs.append([[u for u in updates if u.request_id == f"{i}"] for i in range(len(params))])
        core.close()
    for ahead, plain in zip(*outputs, strict=True):
        assert [(u.token_ids, u.logprobs, u.prompt_logprobs) for u in ahead] == [
            (u.token_ids, u.logprobs, u.prompt_logprobs) for u in plain
        ]


def test_an_executor_of_depth_1_refuses_a_placeholder(engine_plan: EnginePlan) -> None:
    step = build_step([array("i", [~0])], [0], [[array("i", [0])]])
    with pytest.raises(ValueError, match="placeholder"):
        load(engine_plan).submit(step)
