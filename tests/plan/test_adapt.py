"""The pass that makes room for adapters."""

from __future__ import annotations

from collections import Counter

import pytest
from support.checkpoints import tiny_checkpoint

from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.interface.adapters import AdapterSlots
from penstock.plan import ops
from penstock.plan.adapt import adapt, adapted_matrices, adapter_bytes, without_adapters
from penstock.plan.plan import Plan

SLOTS = AdapterSlots(count=3, rank=8)


def plan_of(family: str, **options: object) -> Plan:
    config = EngineConfig(model=str(tiny_checkpoint(family)), backend="reference", **options)  # type: ignore[arg-type]
    return plan_engine(config).plan


def test_ops_of_a_layer() -> None:
    """Joined products have one addition; gate and up are apart, and share the first half."""
    plan = plan_of("llama")
    adapted = adapt(plan, SLOTS)
    before, after = (Counter(op.kind for op in each.ops) for each in (plan, adapted))
    assert after - before == Counter(AdapterDown=9, AdapterUp=11, Linear=2, Gate=2)
    downs = [op for op in adapted.ops if isinstance(op, ops.AdapterDown)]
    assert [len(op.parts) for op in downs] == [3, 1, 2, 1] * 2 + [1]
    assert adapted.num_parameters == plan.num_parameters
    assert set(adapted.results) == set(plan.results)


def test_what_can_be_adapted() -> None:
    assert adapted_matrices(plan_of("llama")) == {}
    matrices = adapted_matrices(adapt(plan_of("llama"), SLOTS))
    assert matrices["layers.1.down"] == (64, 100)
    assert len(matrices) == 2 * 7 + 1
    experts = adapted_matrices(adapt(plan_of("mixtral"), SLOTS))
    assert not any("experts" in name for name in experts)
    tied = adapted_matrices(adapt(plan_of("gemma"), SLOTS))
    assert "embed" not in tied


def test_memory_of_all_slots() -> None:
    plan = adapt(plan_of("llama"), SLOTS)
    sums = sum(n + k for n, k in adapted_matrices(plan).values())
    assert adapter_bytes(plan) == 3 * 8 * 4 * sums
    assert adapter_bytes(without_adapters(plan)) == 0


def test_factors_of_balanced_matrices() -> None:
    plan = plan_of("llama", quantization="int8")
    adapted = adapt(plan, SLOTS)
    given = {
        each: [(b.side, b.input) for b in adapted.weights[each].balances]
        for op in adapted.ops
        if isinstance(op, ops.AdapterDown | ops.AdapterUp)
        for each in op.weights
        if each.startswith("layers.0")
    }
    assert {name: [side for side, _ in each] for name, each in given.items()} == {
        "layers.0.q.columns": ["matrix"],
        "layers.0.gate.columns": ["matrix"],
        "layers.0.up.rows": ["input"],
        "layers.0.down.columns": ["matrix"],
    }
    assert set(without_adapters(adapted).weights) == set(plan.weights)


def test_what_there_is_no_room_for() -> None:
    with pytest.raises(ConfigError, match="1 to 256"):
        adapt(plan_of("llama"), AdapterSlots(1, 300))
