"""Rotary tables are made as far as contexts come, and hold what whole tables would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.needs import require_native
from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of

from penstock.backends.registry import BACKENDS
from penstock.interface.executor import Executor, Limits
from penstock.interface.step import StepInput
from penstock.models import rope
from penstock.models.rope import positions_to_fill, rope_rows, rope_tables
from penstock.models.rope_spec import RopeSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan

LIMITS = Limits(num_blocks=12, max_tokens=64, max_logit_rows=8, max_sequences=4, threads=1)
A, B = tokens_of(1, 300), tokens_of(2, 120)
SPEC = make_spec()


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu":
        require_native()
    return str(request.param)


def plan_of(max_positions: int, primitive: bool = False) -> Plan:
    spec = replace(SPEC, max_positions=max_positions)
    plan = lower(spec)
    return plan if primitive else fuse(plan)


def bound(backend: str, plan: Plan) -> Executor:
    return BACKENDS[backend].bind(plan, dummy_weights(SPEC, 3, "float32"), LIMITS)


def steps() -> Iterator[StepInput]:
    for start in range(0, 240, 60):
        chunks = [Chunk(A, start, start + 60, list(range(8)))]
        if start == 120:
            chunks.append(Chunk(B, 0, 4, [9, 10]))
        yield step_of(chunks)
    yield step_of([Chunk(B, 4, 6, [9, 10]), Chunk(A, 240, 241, list(range(8)))])


@pytest.mark.parametrize("primitive", [False, True])
def test_growing_tables_change_no_bit(
    backend: str, primitive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bound(backend, plan_of(512, primitive))
    expected = [whole.run(step).logits.copy() for step in steps()]
    whole.close()
    monkeypatch.setattr(rope, "ROWS_AT_FIRST", 40)
    monkeypatch.setattr(rope, "ROWS_AT_ONCE", 25)
    growing = bound(backend, plan_of(512, primitive))
    for step, logits in zip(steps(), expected, strict=True):
        np.testing.assert_array_equal(growing.run(step).logits, logits)
    if backend == "cpu":
        native: Any = growing
        assert native._rope_tables._filled == 40 + 9 * 25
        assert len(native.profile(step)[1]) > 5
    growing.close()


def test_sixteen_million_positions_take_no_more_than_their_context(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(spec: RopeSpec, first: int, end: int) -> Any:
        made.append(end - first)
        return rope_rows(spec, first, end)

    for module in ("cpu.rope_tables", "reference.executor"):
        monkeypatch.setattr(f"penstock.backends.{module}.rope_rows", counted)
    executor = bound(backend, plan_of(2**24))
    for step in steps():
        executor.run(step)
    assert sum(made) == rope.ROWS_AT_FIRST
    if backend == "cpu":
        small: Any = bound(backend, plan_of(512))
        native: Any = executor
        rows = rope.ROWS_AT_FIRST - 512
        assert native.weight_bytes - small.weight_bytes == rows * 8 * 4 * 2
        small.close()
    executor.close()


@given(
    positions=st.integers(1, 2**24),
    limit=st.integers(1, 2**24),
)
def test_tables_are_filled_far_enough(positions: int, limit: int) -> None:
    positions = min(positions, limit)
    filled = positions_to_fill(positions, limit)
    assert positions <= filled <= limit
    assert filled < max(rope.ROWS_AT_FIRST + 1, positions + rope.ROWS_AT_ONCE)


@pytest.mark.parametrize("kind", ["default", "dynamic", "yarn"])
def test_rows_are_those_of_the_whole_table(kind: Any) -> None:
    spec = RopeSpec(theta=1e4, dim=16, kind=kind, factor=4.0, original_max_positions=64)
    whole = rope_tables(spec, 9000)
    for first, end in ((0, 9000), (100, 5000), (4095, 4097), (8999, 9000), (70, 70)):
        for table, rows in zip(whole, rope_rows(spec, first, end), strict=True):
            np.testing.assert_array_equal(rows, table[first:end])
