from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kv_tables import arrays_of

from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.kv_cache import BlockCopy, KvCache
from penstock.engine.step_builder import build_step_input
from penstock.interface.messages import EngineRequest
from penstock.interface.step import StepInput
from penstock.length_limits import LengthLimits
from penstock.pooling.params import PoolingKind, PoolingParams
from penstock.sampling.params import SamplingParams
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import make_sequences


def _scheduler(size: int = 4) -> Scheduler:
    return Scheduler(KvCache(64, size), 8, 24, LengthLimits(100))


def _add(scheduler: Scheduler, name: str, prompt: list[int], **params: object) -> None:
    sampling = SamplingParams(**{"max_tokens": 20, **params})  # type: ignore[arg-type]
    message = EngineRequest(request_id=name, prompt_token_ids=prompt, params=sampling)
    scheduler.add(make_sequences(message, 0))


def _embed(scheduler: Scheduler, name: str, prompt: list[int], kind: PoolingKind) -> None:
    pooling = PoolingParams(pooling=kind)
    message = EngineRequest(request_id=name, prompt_token_ids=prompt, pooling=pooling)
    scheduler.add(make_sequences(message, 0))


def _next(scheduler: Scheduler, step: ScheduledStep) -> ScheduledStep:
    scheduler.update(step, [[90 + i] for i in range(len(step.samples))])
    following = scheduler.schedule()
    assert following is not None
    return following


def _lists(step: ScheduledStep, size: int) -> dict[str, list[int]]:
    built = build_step_input(step, size)
    arrays = arrays_of(built)
    assert not arrays.pop("features").size  # no model that is scheduled reads any
    assert all(a.dtype == np.int32 and a.flags.c_contiguous for a in arrays.values())
    assert arrays["block_copies"].shape == (len(step.block_copies), 2)
    assert not len(arrays.pop("tree_parents"))  # nothing that is scheduled branches
    assert not len(arrays.pop("slot_moves"))
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
        "hidden_rows": [],
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
        "hidden_rows": [],
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
        "hidden_rows": [],
    }


def test_hidden_rows_by_hand() -> None:
    scheduler = _scheduler()
    _add(scheduler, "a", [11, 12])
    _embed(scheduler, "last", [21, 22, 23], "last")
    _embed(scheduler, "mean", [31, 32, 33], "mean")
    _embed(scheduler, "cls", [41, 42, 43], "cls")
    step = scheduler.schedule()
    assert step is not None
    built = _lists(step, 4)
    assert built["token_ids"] == [11, 12, 21, 22, 23, 31, 32, 33, 41]
    assert built["logit_rows"] == [1]
    assert built["hidden_rows"] == [4, 5, 6, 7, 8]
    step = _next(scheduler, step)
    assert _lists(step, 4)["token_ids"] == [90]


def check_against_one_row_at_a_time(step: ScheduledStep, built: StepInput, size: int) -> None:
    row, logit_rows, hidden_rows = 0, [], []
    for s, entry in enumerate(step.sequences):
        (table,) = entry.sequence.table.blocks
        (tables,) = built.groups
        first, last = tables.block_starts[s], tables.block_starts[s + 1]
        assert tables.block_ids[first:last].tolist() == list(table)
        assert built.query_starts[s] == row
        assert built.context_lens[s] == entry.start + entry.num_tokens
        for position in range(entry.start, entry.start + entry.num_tokens):
            assert built.token_ids[row] == entry.sequence.token_ids[position]
            assert built.positions[row] == position
            assert tables.slots[row] == table[position // size] * size + position % size
            row += 1
        logit_rows += range(row - entry.num_logits, row)
        hidden_rows += range(row - entry.num_hidden, row)
    assert built.num_tokens == row == built.query_starts[-1]
    assert built.logit_rows.tolist() == logit_rows
    assert len(built.logit_rows) == step.num_logits
    assert built.hidden_rows.tolist() == hidden_rows
    assert len(hidden_rows) == step.num_hidden


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from(["tokens", "logprobs", "last", "mean"])),
        min_size=1,
        max_size=8,
    )
)
def test_against_one_row_at_a_time(prompts: list[tuple[int, str]]) -> None:
    scheduler = _scheduler()
    _add(scheduler, "goes on", [9])
    for i, (length, kind) in enumerate(prompts):
        if kind == "last" or kind == "mean":
            _embed(scheduler, f"r{i}", [i] * length, kind)
        else:
            _add(scheduler, f"r{i}", [i] * length, prompt_logprobs=1 if kind != "tokens" else None)
    step = scheduler.schedule()
    for _ in range(8):
        assert step is not None
        check_against_one_row_at_a_time(step, build_step_input(step, 4), 4)
        step = _next(scheduler, step)


class ForgetfulCache(KvCache):
    """Looks at everything in every call: the other remembers where there is nothing to see."""

    def extend(self, table: BlockTable, start: int, end: int, copies: list[BlockCopy]) -> bool:
        table.writable = 0
        return super().extend(table, start, end, copies)

    def commit(self, table: BlockTable, tokens: array[int], num_computed: int) -> None:
        table.due_at = 0
        super().commit(table, tokens, num_computed)


@dataclass(frozen=True)
class Arrival:
    """A request, and what happens after so many more steps."""

    prompt: list[int]
    params: dict[str, object]
    priority: int
    steps: int
    then: str


ARRIVALS = st.builds(
    Arrival,
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=30),  # few kinds: prefixes meet
    params=st.fixed_dictionaries(
        {
            "max_tokens": st.integers(1, 20),
            "n": st.sampled_from([1, 1, 2, 3]),
            "prompt_logprobs": st.sampled_from([None, None, 0]),
        }
    ),
    priority=st.integers(0, 1),
    steps=st.integers(0, 6),
    then=st.sampled_from(["", "", "", "abort", "abort one", "reset"]),
)


def _steps_of(cache: KvCache, arrivals: list[Arrival]) -> Iterator[dict[str, list[int]]]:
    """Every step that these arrivals come to, until the last one has ended, as lists."""
    scheduler = Scheduler(cache, 5, 12, LengthLimits(60))
    for i, arrival in enumerate([*arrivals, None]):
        if arrival is not None:
            params = SamplingParams(**arrival.params)  # type: ignore[arg-type]
            message = EngineRequest(
                request_id=f"{i}",
                prompt_token_ids=arrival.prompt,
                params=params,
                priority=arrival.priority,
            )
            scheduler.add(make_sequences(message, i))
        for _ in range(1000 if arrival is None else arrival.steps):
            step = scheduler.schedule()
            if step is None:
                break
            built = build_step_input(step, cache.block_size)
            check_against_one_row_at_a_time(step, built, cache.block_size)
            yield {name: array.tolist() for name, array in arrays_of(built).items()}
            sampled = [[(s.key + s.num_tokens) % 2] for s in step.samples]
            scheduler.update(step, sampled)
            scheduler.check_integrity()
        if arrival is not None and arrival.then == "reset":
            cache.reset()
        elif arrival is not None and arrival.then == "abort":
            scheduler.abort(f"{i}")
        elif arrival is not None and arrival.then == "abort one":
            started = [s for s in scheduler.running if s.num_output_tokens]
            if started:
                scheduler.abort(started[0].request_id, started[0].index)
    assert not scheduler.has_work
    assert cache.num_used_blocks == 0


@settings(max_examples=150, deadline=None)
@given(st.lists(ARRIVALS, min_size=1, max_size=7), st.sampled_from([13, 16, 40]))
def test_what_the_cache_remembers_changes_no_step(arrivals: list[Arrival], blocks: int) -> None:
    """Blocks are few, so that sequences are preempted, share, and copy what they share."""
    remembering = list(_steps_of(KvCache(blocks, 4), arrivals))
    assert remembering == list(_steps_of(ForgetfulCache(blocks, 4), arrivals))


def test_arrays_do_not_change_when_sequences_go_on() -> None:
    scheduler = _scheduler(BLOCK_SIZE)
    _add(scheduler, "a", [1, 2, 3])
    step = scheduler.schedule()
    assert step is not None
    built = build_step_input(step)
    _next(scheduler, step)
    assert built.token_ids.tolist() == [1, 2, 3]
    with pytest.raises(AttributeError):
        built.token_ids = built.positions  # type: ignore[misc]
