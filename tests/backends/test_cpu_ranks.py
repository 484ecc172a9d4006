"""Ranks on native executors compute bit by bit what one executor does, and never wait for ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.checkpoints import tiny_checkpoint
from support.native_ranks import on_native_ranks, segment_of
from support.needs import needs_native
from support.rank_steps import LIMITS, STEPS, own_logits
from support.state_steps import with_states
from support.tiny_plans import make_spec

from penstock.backends.cpu.bind import bind, refusal
from penstock.backends.cpu.executor import CpuExecutor
from penstock.backends.cpu.native import load
from penstock.errors import ConfigError
from penstock.interface.collective import RankSeat, thread_ranks
from penstock.interface.rank_segment import RankSegment, segment_bytes
from penstock.interface.step import StepInput
from penstock.interface.weights import WeightSource
from penstock.plan.fuse import fuse
from penstock.plan.gathers import slot_bytes
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.plan.shard import shard
from penstock.quant.choice import choose
from penstock.weights.checkpoint import open_weights
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec

pytestmark = needs_native


def results(executor: CpuExecutor, steps: Sequence[StepInput]) -> list[NDArray[Any]]:
    """The logits and hidden states of each step."""
    found: list[NDArray[Any]] = []
    for step in steps:
        result = executor.run(step)
        found.append(result.logits.copy())
        assert result.hidden is not None
        found.append(result.hidden.astype(np.float32))
    return found


def check(
    plan: Plan,
    weights: Callable[[Plan], WeightSource],
    worlds: Sequence[int],
    threads: int = 1,
) -> None:
    """So many ranks give bitwise what one executor gives."""
    steps = [with_states(step) if plan.state_layers else step for step in STEPS]
    assert len(plan.kv_groups) == 1  # of which steps have tables
    whole, limits = fuse(plan), replace(LIMITS, threads=threads)
    one = bind(whole, weights(whole), LIMITS)
    expected = results(one, steps)
    one.close()
    for world in worlds:
        ranks = on_native_ranks(plan, weights, limits, world, lambda e, _: results(e, steps))
        for rank, several in enumerate(ranks):
            own = shard(plan, rank, world)
            for i, (got, wanted) in enumerate(zip(several, expected, strict=True)):
                if i % 2 == 0:
                    wanted = own_logits(own, rank, wanted)
                np.testing.assert_array_equal(got, wanted)


def dummies(dtype: Any) -> Callable[[Plan], WeightSource]:
    return lambda plan: DummyWeights(plan.weights, 3, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("heads", [(8, 8), (9, 3)])
def test_ranks_compute_what_one_executor_does(heads: tuple[int, int], dtype: Any) -> None:
    """Evenly or not, with fewer KV heads than ranks, and with more ranks than cores."""
    check(lower(make_spec(heads=heads, bias=True), dtype), dummies(dtype), [2, 3, 4, 8])


def test_ranks_of_several_threads() -> None:
    check(lower(make_spec(heads=(6, 3), tie=False)), dummies("float32"), [2, 3], threads=3)


@pytest.mark.parametrize(
    ("name", "group", "activations"),
    [("int8", None, True), ("int4", None, True), ("int4", 32, False), ("int8", 64, True)],
)
def test_quantized(name: Any, group: int | None, activations: bool) -> None:
    schemes = choose(name, group, True, activations=activations)
    spec = make_spec(heads=(8, 4), qk_norm=True)
    plan = lower(spec, "bfloat16", quantization=schemes, kv_dtype="int8")
    check(plan, dummies("bfloat16"), [2, 3])


@pytest.mark.parametrize(
    ("family", "worlds"),
    [
        ("qwen3_moe", [2]),
        ("deepseek_v3", [3]),
        *(
            pytest.param(family, worlds, marks=pytest.mark.slow)
            for family, worlds in (
                ("mixtral", [2, 4]),
                ("olmo2", [2, 4]),
                ("qwen3_next", [2]),
            )
        ),
    ],
)
def test_families(family: str, worlds: list[int]) -> None:
    folder = tiny_checkpoint(family)
    spec = load_model_spec(folder)
    plan = lower(spec)
    check(plan, lambda own: open_weights(folder, spec, own.weights, "float32"), worlds)


def test_python_and_native_code_agree_on_the_size_of_a_segment() -> None:
    for world in (2, 3, 7, 64, 200):
        for slot in (1, 4096, 4097, 10**7):
            native = load().Executor.rank_group_bytes(world, slot)  # type: ignore[attr-defined]
            assert segment_bytes(world, slot) == native


def test_a_rank_that_waits_for_one_that_has_failed_fails_too() -> None:
    plan = lower(make_spec(heads=(4, 4)))

    def work(executor: CpuExecutor, segment: RankSegment) -> bool:
        if executor is not first_of(executor, segment):
            time.sleep(0.2)  # the other waits by now, asleep
            segment.give_up()
            return False
        with pytest.raises(RuntimeError, match="waits for ranks that have failed"):
            executor.run(STEPS[0])
        with pytest.raises(RuntimeError, match="waits for ranks that have failed"):
            executor.run(STEPS[3])
        return True

    firsts: list[CpuExecutor] = []

    def first_of(executor: CpuExecutor, segment: RankSegment) -> CpuExecutor:
        firsts.append(executor)
        return firsts[0]

    assert sorted(on_native_ranks(plan, dummies("float32"), LIMITS, 2, work)) == [False, True]


def test_what_binding_refuses() -> None:
    own = fuse(shard(lower(make_spec(heads=(4, 4))), 0, 2))
    weights = DummyWeights(own.weights, 3, "float32")
    assert refusal(own) is None
    with pytest.raises(ConfigError, match="this executor has joined no ranks"):
        bind(own, weights, LIMITS)
    size = slot_bytes(own, LIMITS.max_tokens, LIMITS.max_selected_rows)
    with segment_of(own, LIMITS, 3) as segment:
        two, three = thread_ranks(2), thread_ranks(3)
        for seat, message in (
            (RankSeat(three[0], segment.fd, size, 3), "columns of 2 ranks for a group of 3"),
            (RankSeat(two[0], segment.fd, size - 4096, 2), "larger than the ranks' slots"),
            (RankSeat(two[0], segment.fd, 4 * size, 2), "the memory of ranks has"),
        ):
            with pytest.raises(ConfigError, match=message):
                bind(own, weights, LIMITS, seat=seat)
    uneven = fuse(shard(lower(make_spec(heads=(3, 3))), 0, 2))
    with segment_of(uneven, LIMITS, 2) as segment:
        seat = RankSeat(thread_ranks(2)[1], segment.fd, segment.slot_bytes, 2)
        with pytest.raises(ConfigError, match="the rank has 16 columns of an output, not 32"):
            bind(uneven, DummyWeights(uneven.weights, 3, "float32"), LIMITS, seat=seat)
