"""Pages of the KV cache that are cleared before steps write to them."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from support.tiny_plans import Chunk, make_spec, step_of, tokens_of
from support.waiting import PATIENCE_S, until

from penstock.backends.cpu import bind as binding
from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor
from penstock.hardware import detect
from penstock.interface.executor import Limits
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.weights import WeightValue
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.weights.dummy import DummyWeights

NUM_BLOCKS = 16384
TOKENS = tokens_of(1, 60)


def resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


class SlowWeights(DummyWeights):
    """Random weights; ``reading`` is called before each is read."""

    def __init__(self, weights: Mapping[str, PlanWeight], reading: Callable[[], object]) -> None:
        super().__init__(weights, 3, "float32")
        self._reading = reading

    def get(self, name: str) -> WeightValue:
        self._reading()
        return super().get(name)


def executor(
    blocks_are_put: bool = False, reading: Callable[[], object] = lambda: None
) -> CpuExecutor:
    spec = make_spec()
    limits = Limits(
        NUM_BLOCKS,
        max_tokens=64,
        max_logit_rows=64,
        max_sequences=2,
        threads=2,
        blocks_are_put=blocks_are_put,
    )
    weights = SlowWeights(lower(spec).weights, reading)
    return bind(fuse(lower(spec, "float32")), weights, limits)


@pytest.fixture
def one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "detect", lambda: replace(detect(), numa_nodes=1))


@pytest.mark.usefixtures("one_node")
def test_pages_are_there_before_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many as were asked for, and as many again once a step has written to a block."""
    monkeypatch.setattr(binding, "_STEPS_AHEAD", NUM_BLOCKS // 8)
    page_bytes = fuse(lower(make_spec(), "float32")).kv_groups.page_bytes
    quarter = NUM_BLOCKS // 4 * page_bytes
    assert quarter > 16 << 20, "too little to tell from what else is allocated meanwhile"
    before = resident()
    made = executor()
    try:
        until(lambda: resident() - before > 0.9 * quarter, PATIENCE_S, "cleared")
        assert resident() - before < 1.8 * quarter
        made.run(step_of([Chunk(TOKENS, 0, 3, [NUM_BLOCKS // 4])]))
        until(lambda: resident() - before > 1.9 * quarter, PATIENCE_S, "cleared behind a step")
        assert resident() - before < 2.8 * quarter
        # Near the end there is no more; what a step needs is there at its end, not some time after.
        made.run(step_of([Chunk(TOKENS, 3, 5, [NUM_BLOCKS - 1])]))
        assert resident() - before > 3.8 * quarter
    finally:
        made.close()
    assert resident() - before < quarter


@pytest.mark.usefixtures("one_node")
def test_as_much_is_ahead_as_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steps are short, and many come without a pause."""
    monkeypatch.setattr(binding, "_STEPS_AHEAD", 1)
    page_bytes = fuse(lower(make_spec(), "float32")).kv_groups.page_bytes
    quarter = NUM_BLOCKS // 4 * page_bytes
    before = resident()
    made = executor()
    try:
        time.sleep(0.1)
        assert resident() - before < 0.5 * quarter
        made.run(step_of([Chunk(TOKENS, 0, 3, [NUM_BLOCKS // 4])]))
        until(lambda: resident() - before > 1.9 * quarter, PATIENCE_S, "cleared behind a step")
        time.sleep(0.1)
        assert resident() - before < 2.3 * quarter
    finally:
        made.close()


@pytest.mark.usefixtures("one_node")
def test_pages_are_there_before_blocks_are_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are put at once, before any step; and where none are put, no more than for
    steps."""
    monkeypatch.setattr(binding, "_STEPS_AHEAD", 1)
    page_bytes = fuse(lower(make_spec(), "float32")).kv_groups.page_bytes
    quarter = NUM_BLOCKS // 4 * page_bytes
    monkeypatch.setattr(binding, "_PUT_BYTES", quarter)
    before = resident()
    made = executor()
    time.sleep(0.2)
    assert resident() - before < 0.5 * quarter
    made.close()
    before = resident()
    made = executor(blocks_are_put=True)
    try:
        until(lambda: resident() - before > 0.9 * quarter, PATIENCE_S, "cleared")
        assert resident() - before < 1.5 * quarter
    finally:
        made.close()


@pytest.mark.usefixtures("one_node")
def test_pages_are_cleared_while_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is asked at once has no idle time before its first steps."""
    monkeypatch.setattr(binding, "_STEPS_AHEAD", NUM_BLOCKS // 8)
    quarter = NUM_BLOCKS // 4 * fuse(lower(make_spec(), "float32")).kv_groups.page_bytes
    before = resident()

    def wait() -> None:
        until(lambda: resident() - before > 0.9 * quarter, PATIENCE_S, "cleared")

    executor(reading=wait).close()


@pytest.mark.usefixtures("one_node")
def test_what_is_written_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps begin while pages are cleared, and executors end then."""
    monkeypatch.setattr(binding, "_STEPS_AHEAD", NUM_BLOCKS)
    steps = [step_of([Chunk(TOKENS, i, i + 1, [0, NUM_BLOCKS // 2])]) for i in range(40)]
    bits = set()
    for _ in range(3):
        made = executor()
        bits.add(b"".join(np.asarray(made.run(step).logits).tobytes() for step in steps))
        made.close()
    monkeypatch.setattr(binding, "detect", lambda: replace(detect(), numa_nodes=2))
    made = executor()
    bits.add(b"".join(np.asarray(made.run(step).logits).tobytes() for step in steps))
    made.close()
    assert len(bits) == 1


def test_threads_on_several_nodes_clear_pages_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page lies where it is cleared."""
    monkeypatch.setattr(binding, "detect", lambda: replace(detect(), numa_nodes=2))
    monkeypatch.setattr(binding, "_STEPS_AHEAD", NUM_BLOCKS)
    before = resident()
    made = executor()
    page_bytes = fuse(lower(make_spec(), "float32")).kv_groups.page_bytes
    made.run(step_of([Chunk(TOKENS, 0, 3, [0])]))
    time.sleep(0.3)
    assert resident() - before < NUM_BLOCKS * page_bytes // 4
    made.close()
