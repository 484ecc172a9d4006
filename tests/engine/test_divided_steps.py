"""Sequences divided among several steps in flight, as the stages of a pipeline have them."""

from __future__ import annotations

import pytest
from support.overlap_executor import Deferred, HashExecutor
from support.overlapped import VOCAB, make_core

from penstock.engine.core import EngineCore
from penstock.engine.loader import EnginePlan
from penstock.interface.messages import EngineRequest, SequenceUpdate
from penstock.sampling.params import SamplingParams


def add(core: EngineCore, name: str, prompt: list[int], max_tokens: int = 8) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    core.add_request(EngineRequest(request_id=name, prompt_token_ids=prompt, params=params))


def finish(core: EngineCore) -> dict[str, list[int]]:
    outputs: dict[str, list[int]] = {}
    while core.has_work:
        for update in core.step():
            outputs.setdefault(update.request_id, []).extend(update.token_ids)
        core.check_integrity()
    assert core.stats().kv_blocks_used == 0
    return outputs


class Watched(Deferred):
    """Also notes how many sequences and tokens each submission has, and how many are behind."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: list[tuple[int, int, int]] = []

    def submit(self, step, sampling=None):  # type: ignore[no-untyped-def]
        self.seen.append((step.num_sequences, step.num_tokens, len(self.pending)))
        return super().submit(step, sampling)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_all_stages_have_their_share(engine_plan: EnginePlan, depth: int) -> None:
    executor = Watched(HashExecutor(60, VOCAB), depth=depth, placeholders=False)
    core = make_core(engine_plan, executor, max_num_seqs=12, max_num_batched_tokens=24 * depth)
    for i in range(12):
        add(core, str(i), [3 + i, 4], max_tokens=30)
    outputs = finish(core)
    assert all(len(tokens) == 30 for tokens in outputs.values())
    decoding = executor.seen[depth : -2 * depth]
    assert {sequences for sequences, _, _ in decoding} == {12 // depth}
    assert {behind for _, _, behind in decoding} == {depth - 1}
    alone = make_core(engine_plan, HashExecutor(60, VOCAB), max_num_seqs=12)
    for i in range(12):
        add(alone, str(i), [3 + i, 4], max_tokens=30)
    assert finish(alone) == outputs


def test_a_prompt_is_in_several_steps_at_once(engine_plan: EnginePlan) -> None:
    """Its chunks follow each other through the stages."""
    executor = Watched(HashExecutor(60, VOCAB), depth=3, placeholders=False)
    core = make_core(engine_plan, executor, max_num_seqs=3, max_num_batched_tokens=30)
    add(core, "long", list(range(3, 55)) * 2, max_tokens=2)
    finish(core)
    assert [tokens for _, tokens, _ in executor.seen[:10]] == [10] * 10
    assert [behind for _, _, behind in executor.seen[:10]] == [0, 1, *[2] * 8]


def test_prompts_are_divided_so_that_all_stages_have_some(engine_plan: EnginePlan) -> None:
    executor = Watched(HashExecutor(60, VOCAB), depth=2, placeholders=False)
    core = make_core(engine_plan, executor, max_num_seqs=4, max_num_batched_tokens=800)
    add(core, "one", list(range(3, 53)) * 3, max_tokens=2)
    finish(core)
    assert [tokens for _, tokens, _ in executor.seen] == [64, 64, 22, 1]
    executor.seen.clear()
    for i in range(4):
        add(core, str(i), [4 + i, *range(3, 53)] * 3, max_tokens=1)
    finish(core)
    # 612 tokens: a fourth of what is left each time, and 64 at least
    assert [tokens for _, tokens, _ in executor.seen][:4] == [153, 115, 86, 65]


def test_a_sequence_alone_is_in_one_step_at_a_time(engine_plan: EnginePlan) -> None:
    executor = Watched(HashExecutor(60, VOCAB), depth=4, placeholders=False)
    core = make_core(engine_plan, executor)
    add(core, "alone", [3, 4, 5])
    finish(core)
    assert [behind for _, _, behind in executor.seen] == [0] * 8


def test_nobody_is_left_out_for_ever(engine_plan: EnginePlan) -> None:
    """Where the running sequences cannot be divided evenly."""
    executor = Watched(HashExecutor(60, VOCAB), depth=3, placeholders=False)
    core = make_core(engine_plan, executor, max_num_seqs=7, max_num_batched_tokens=42)
    for i in range(7):
        add(core, str(i), [3 + i], max_tokens=40)
    last: dict[str, int] = {}
    updates: list[SequenceUpdate] = []
    steps = 0
    while core.has_work:
        updates = core.step()
        steps += bool(updates)
        for update in updates:
            assert steps - last.get(update.request_id, steps) <= 4
            last[update.request_id] = steps
