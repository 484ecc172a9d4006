from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cache.kv_cache import KvCache
from penstock.engine.messages import EngineRequest
from penstock.engine.request import make_sequences
from penstock.engine.scheduled import ScheduledStep
from penstock.engine.scheduler import Scheduler
from penstock.engine.step import BLOCK_SIZE
from penstock.engine.step_builder import build_step_input
from penstock.sampling.params import SamplingParams


def _scheduler(size: int = 4) -> Scheduler:
    return Scheduler(KvCache(64, size), 8, 24, 100)


def _add(scheduler: Scheduler, name: str, prompt: list[int], **params: object) -> None:
    sampling = SamplingParams(**{"max_tokens": 20, **params})  # type: ignore[arg-type]
    message = EngineRequest(request_id=name, prompt_token_ids=prompt, params=sampling)
    scheduler.add(make_sequences(message, 0))


def _next(scheduler: Scheduler, step: ScheduledStep) -> ScheduledStep:
    scheduler.update(step, [[90 + i] for i in range(len(step.samples))])
    following = scheduler.schedule()
    assert following is not None
    return following


def _lists(step: ScheduledStep, size: int) -> dict[str, list[int]]:
    built = build_step_input(step, size)
    arrays = {name: getattr(built, name) for name in built.__dataclass_fields__}
    assert all(a.dtype == np.int32 and a.flags.c_contiguous for a in arrays.values())
    assert arrays["block_copies"].shape == (len(step.block_copies), 2)
    return {name: a.tolist() for name, a in arrays.items()}


def test_by_hand() -> None:
    scheduler = _scheduler()
    _add(scheduler, "a", [11, 12, 13, 14, 15])
    step = scheduler.schedule()
    assert step is not None
    assert _lists(step, 4) == {
        "token_ids": [11, 12, 13, 14, 15],
        "positions": [0, 1, 2, 3, 4],
        "slots": [0, 1, 2, 3, 4],
        "query_starts": [0, 5],
        "context_lens": [5],
        "block_starts": [0, 2],
        "block_ids": [0, 1],
        "logit_rows": [4],
        "block_copies": [],
    }
    _add(scheduler, "b", [21, 22, 23], prompt_logprobs=0, n=2)
    step = _next(scheduler, step)
    assert _lists(step, 4) == {
        "token_ids": [90, 21, 22, 23],
        "positions": [5, 0, 1, 2],
        "slots": [5, 8, 9, 10],
        "query_starts": [0, 1, 4],
        "context_lens": [6, 3],
        "block_starts": [0, 2, 3],
        "block_ids": [0, 1, 2],
        "logit_rows": [0, 1, 2, 3],
        "block_copies": [],
    }
    assert [(s.request_id, s.index) for s in step.samples] == [("a", 0), ("b", 0), ("b", 1)]
    assert step.sample_rows == [0, 3, 3]
    step = _next(scheduler, step)
    assert _lists(step, 4) == {
        "token_ids": [90, 91, 92],
        "positions": [6, 3, 3],
        "slots": [6, 15, 11],  # the first of the two to write moved to a copy
        "query_starts": [0, 1, 2, 3],
        "context_lens": [7, 4, 4],
        "block_starts": [0, 2, 3, 4],
        "block_ids": [0, 1, 3, 2],
        "logit_rows": [0, 1, 2],
        "block_copies": [[2, 3]],
    }


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=8))
def test_against_one_row_at_a_time(prompts: list[tuple[int, bool]]) -> None:
    scheduler = _scheduler()
    for i, (length, detailed) in enumerate(prompts):
        _add(scheduler, f"r{i}", [i] * length, prompt_logprobs=1 if detailed else None)
    step = scheduler.schedule()
    for _ in range(8):
        assert step is not None
        built = build_step_input(step, 4)
        row, logit_rows = 0, []
        for s, entry in enumerate(step.sequences):
            table = entry.sequence.table.block_ids
            first, last = built.block_starts[s], built.block_starts[s + 1]
            assert built.block_ids[first:last].tolist() == list(table)
            assert built.query_starts[s] == row
            assert built.context_lens[s] == entry.start + entry.num_tokens
            for position in range(entry.start, entry.start + entry.num_tokens):
                assert built.token_ids[row] == entry.sequence.token_ids[position]
                assert built.positions[row] == position
                assert built.slots[row] == table[position // 4] * 4 + position % 4
                row += 1
            logit_rows += range(row - entry.num_logits, row)
        assert built.num_tokens == row == built.query_starts[-1]
        assert built.logit_rows.tolist() == logit_rows
        step = _next(scheduler, step)


def test_arrays_do_not_change_when_sequences_go_on() -> None:
    scheduler = _scheduler(BLOCK_SIZE)
    _add(scheduler, "a", [1, 2, 3])
    step = scheduler.schedule()
    assert step is not None
    built = build_step_input(step)
    _next(scheduler, step)
    assert built.token_ids.tolist() == [1, 2, 3]
    with pytest.raises(AttributeError):
        built.token_ids = built.slots  # type: ignore[misc]
