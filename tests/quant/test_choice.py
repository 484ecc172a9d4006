"""Options become schemes, schemes become a plan and bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.meter import weight_bytes_per_step
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec, RopeSpec
from penstock.plan.explain import explain
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import Linear, Op
from penstock.plan.weight_bytes import weight_bytes
from penstock.quant import GridScheme, GroupScheme, Quantization
from penstock.quant.choice import choose
from penstock.resolve import resolve

NORM = NormSpec(eps=1e-5)

HEAD = GridScheme(8)


def make_spec(tie: bool) -> ModelSpec:
    rope = RopeSpec(theta=1e4, dim=16)
    attention = AttentionSpec(6, 2, 16, rope, 0.25, qkv_bias=True)
    return ModelSpec(
        architecture="Tiny",
        vocab_size=211,
        hidden_size=72,
        layers=(LayerSpec(attention, MlpSpec(104), NORM, NORM),) * 2,
        final_norm=NORM,
        tie_embeddings=tie,
        max_positions=512,
        dtype="bfloat16",
    )


@pytest.mark.parametrize(
    ("name", "group", "head", "expected"),
    [
        ("none", None, True, Quantization()),
        ("int8", None, True, Quantization(GridScheme(8), HEAD)),
        ("int4", None, True, Quantization(GridScheme(4), HEAD)),
        ("int4", 32, False, Quantization(GroupScheme(4, 32), None)),
        ("int8", 0, True, Quantization(GridScheme(8), HEAD)),
        ("int8", 64, True, Quantization(GroupScheme(8, 64), HEAD)),
        ("int4", 0, True, Quantization(GroupScheme(4, None), HEAD)),
    ],
)
def test_choose(name: Any, group: int | None, head: bool, expected: Quantization) -> None:
    assert choose(name, group, head) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int4", "quantization_group": 48}, "32, 64, 128, or 0 for whole rows"),
        ({"quantization": "int8", "quantization_group": -1}, "32, 64, 128, or 0 for whole rows"),
        ({"quantization_group": 32}, "has no effect without quantization"),
        (
            {"quantization": "int4", "quantization_zero_points": True},
            "kept for each group of columns; set quantization_group",
        ),
        ({"quantize_activations": False}, "has no effect without quantization"),
        ({"quantization": "int3"}, "none, int8 or int4, not 'int3'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(EngineConfig(**options), detect(), make_spec(True), Path("m"), Path("m"))


def test_zero_points_and_float_activations() -> None:
    schemes = choose("int8", 0, True, zero_points=True, activations=False)
    assert schemes == Quantization(GroupScheme(8, None, True), HEAD, activations=False)
    assert str(schemes.linear) == "int8 by row with zero points"
    config = EngineConfig(
        quantization="int8",
        quantization_group=0,
        quantization_zero_points=True,
        quantize_activations=False,
        max_model_len=64,
    )
    decided = resolve(config, detect(), make_spec(True), Path("m"), Path("m"))
    resolved = decided.config
    assert resolved.schemes == schemes
    plan = fuse(lower(make_spec(True), quantization=schemes))
    assert all(op.weight_only for op in plan.ops if isinstance(op, Linear))
    plain = fuse(lower(make_spec(True), quantization=choose("none", None, True, activations=False)))
    assert not any(op.weight_only for op in plain.ops if isinstance(op, Linear))


def test_resolved() -> None:
    config = EngineConfig(
        backend="reference", quantization="int4", max_model_len=64, max_num_seqs=2
    )
    decided = resolve(config, detect(), make_spec(True), Path("m"), Path("m"))
    resolved = decided.config
    assert (resolved.quantization, resolved.quantization_group) == ("int4", None)
    assert resolved.schemes == Quantization(GridScheme(4), HEAD)
    assert "matrices in int4" in resolved.explain()
    assert resolved.weight_bytes == weight_bytes(decided.plan)
    # What is resolved can be asked for again.
    assert choose("int4", resolved.quantization_group, resolved.quantize_head) == resolved.schemes


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("name", ["none", "int8", "int4"])
def test_bytes_agree(name: Any, head: bool, tie: bool) -> None:
    """What the plan reads each step, and the embedding's lookup besides, is all of its weights."""
    spec, schemes = make_spec(tie), choose(name, None, head)
    plan = fuse(lower(spec, quantization=schemes))
    per_step = weight_bytes_per_step(plan)
    shared = tie and schemes.head is None
    lookup = 0 if shared else spec.vocab_size * spec.hidden_size * 2
    assert per_step + lookup == weight_bytes(plan)
    if name != "none" and head:
        assert per_step < weight_bytes_per_step(fuse(lower(spec))) * 0.6


def test_fusion_keeps_schemes_and_joins_only_equal_ones() -> None:
    spec, schemes = make_spec(False), choose("int4", None, True)
    primitive = lower(spec, quantization=schemes)
    fused = fuse(primitive)
    assert [op.scheme for op in fused.ops if isinstance(op, Linear)] == [schemes.linear] * 8 + [
        schemes.head
    ]
    assert "scheme=int4" in explain(fused)
    assert "scheme=int8" in explain(fused)
    mixed = fuse(replace(primitive, ops=tuple(_other_keys(op) for op in primitive.ops)))
    assert {len(op.parts) for op in mixed.ops if isinstance(op, Linear)} == {1}


def _other_keys(op: Op) -> Op:
    unlike = isinstance(op, Linear) and op.out.endswith((".k", ".up"))
    return replace(op, scheme=HEAD) if unlike else op


def test_a_matrix_may_have_its_own_scheme() -> None:
    """Fusion then joins those that are equal, and leaves the others."""
    eight, groups = GridScheme(8), GroupScheme(4, 32)
    named = {"layers.0.down": groups, "layers.1.v": None}
    schemes = Quantization(eight, HEAD, named=named)
    spec = make_spec(True)
    assert [schemes.of(name) for name in ("head", "embed", "heads.2.head")] == [HEAD] * 3
    plan = lower(spec, quantization=schemes)
    found = {op.parts[0].weight: op.scheme for op in plan.ops if isinstance(op, Linear)}
    assert found == {name: schemes.of(name) for name in found}
    assert (found["layers.0.down"], found["layers.1.v"]) == (groups, None)
    fused = [[p.weight for p in op.parts] for op in fuse(plan).ops if isinstance(op, Linear)]
    assert ["layers.0.q", "layers.0.k", "layers.0.v"] in fused
    assert ["layers.1.q"] in fused
    assert weight_bytes(plan) == weight_bytes(fuse(plan))
