"""The estimate of what weights take is what the native executor then keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from support.convolved import convolved
from support.gptq_checkpoints import gptq_checkpoint
from support.latents import over_latents
from support.needs import needs_native
from support.tiny_plans import make_spec

from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.weight_bytes import weight_bytes
from penstock.config import EngineConfig
from penstock.hardware import detect
from penstock.interface.executor import Limits
from penstock.models.rope import positions_to_fill
from penstock.models.spec import (
    DType,
    ExpertsSpec,
    LatentSpec,
    ModelSpec,
    NormSpec,
    PositionTable,
    Routing,
    SharedExpertSpec,
)
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import ExpertLinear, HeadLinear, Linear
from penstock.plan.plan import Plan
from penstock.quant import GridScheme, GroupScheme, Quantization, QuantScheme
from penstock.resolve import resolve
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec

pytestmark = [needs_native, pytest.mark.thinned(5)]

LIMITS = Limits(num_blocks=4, max_tokens=8, max_logit_rows=2, max_sequences=2, threads=1)

SCHEMES: list[tuple[QuantScheme | None, QuantScheme | None]] = [
    (None, None),
    (GridScheme(8), GridScheme(8)),
    (GridScheme(4), GridScheme(8)),
    (GridScheme(4), None),
    (GroupScheme(4, 32), None),
    (GroupScheme(8, 128), GridScheme(8)),
    (GroupScheme(4, 32, True), GroupScheme(4, 32, True)),
    (GroupScheme(8, None), None),
]


def kept(plan: Plan) -> int:
    """What an executor of ``plan`` keeps of weights: all but its rotary tables."""
    executor = bind(plan, DummyWeights(plan.weights, 1, plan.weight_dtype), LIMITS)
    try:
        positions = positions_to_fill(0, plan.max_positions)
        tables = sum(2 * positions * (rope.dim // 2) * 4 for rope in plan.ropes)
        return executor.weight_bytes - tables
    finally:
        executor.close()


def padding(plan: Plan) -> int:
    """What packed matrices take besides: they have whole panels of 16 rows, of which each half of a
    gated one begins its own, and whole steps of columns; a panel's zero points are whole lines of
    64 bytes."""
    total = 0
    element = 4 if plan.weight_dtype == "float32" else 2
    for op in plan.ops:
        if not isinstance(op, Linear | ExpertLinear):
            continue
        experts = plan.weights[op.parts[0].weight].shape[0] if isinstance(op, ExpertLinear) else 1
        halves = experts * (1 if op.gated is None else 2)
        panels, rows = halves * -(-op.n // 16), halves * op.n
        step = column_step(op.scheme, plan.weight_dtype)
        k = -(-op.k // step) * step
        if op.scheme is None:
            total += (panels * 16 * k - rows * op.k) * element
        else:
            total += op.scheme.nbytes(panels * 16, k) - op.scheme.nbytes(rows, op.k)
        if isinstance(op.scheme, GroupScheme) and op.scheme.zero_points:
            total += panels * (-op.scheme.groups(k) * 16 % 64)
    return total


def column_step(scheme: QuantScheme | None, dtype: DType) -> int:
    """The number that a packed matrix has a multiple of columns of."""
    match scheme:
        case None:
            return 32 if dtype == "bfloat16" else 1
        case GridScheme():
            return 64 if scheme.bits == 8 else 128
        case GroupScheme():
            return scheme.group_size or 64


def whole_panels(tie: bool, dtype: DType) -> ModelSpec:
    """A model whose matrices need no padding in any form."""
    spec = make_spec(tie=tie, bias=True, qk_norm=True, heads=(8, 8))
    (layer, _) = spec.layers
    layers = (replace(layer, mlp=replace(cast(Any, layer.mlp), intermediate_size=256)),) * 2
    return replace(spec, vocab_size=512, hidden_size=128, layers=layers, dtype=dtype)


def with_experts(spec: ModelSpec, width: int) -> ModelSpec:
    """``spec`` with a mixture, biases and a shared expert in its last layer."""
    shared = SharedExpertSpec(width, bias=True, gated=False)
    experts = ExpertsSpec(4, 2, width, routing=Routing(bias=True), shared=shared, bias=True)
    return replace(spec, layers=(spec.layers[0], replace(spec.layers[1], mlp=experts)))


def plan_of(spec: ModelSpec, schemes: tuple[QuantScheme | None, QuantScheme | None]) -> Plan:
    return lower(spec, quantization=Quantization(*schemes))


@pytest.mark.parametrize("schemes", SCHEMES, ids=str)
@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_estimate_of_whole_panels_is_exact(dtype: DType, tie: bool, schemes: Any) -> None:
    plan = fuse(plan_of(whole_panels(tie, dtype), schemes))
    estimate = weight_bytes(plan)
    assert padding(plan) == 0
    assert kept(plan) == estimate


@pytest.mark.parametrize("schemes", SCHEMES, ids=str)
@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_matrices_take_their_padding_besides(dtype: DType, tie: bool, schemes: Any) -> None:
    for spec in (make_spec(tie=tie), with_experts(make_spec(tie=tie, bias=True), 40)):
        plan = fuse(plan_of(replace(spec, dtype=dtype), schemes))
        estimate = weight_bytes(plan)
        assert kept(plan) == estimate + padding(plan)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("schemes", [SCHEMES[0], SCHEMES[2], SCHEMES[4]], ids=str)
def test_the_estimate_of_experts_is_exact(dtype: DType, schemes: Any) -> None:
    plan = fuse(plan_of(with_experts(whole_panels(True, dtype), 128), schemes))
    router = [op for op in plan.ops if isinstance(op, Linear) and op.n == 4]
    assert len(router) == 1  # whose rows alone are no whole panel
    assert 0 < padding(plan) <= 12 * 128 * 4
    assert kept(plan) == weight_bytes(plan) + padding(plan)


def test_primitive_plans_and_tables_of_positions_are_counted() -> None:
    """And norms are float32 whatever the other weights are."""
    spec = whole_panels(True, "bfloat16")
    norm = NormSpec(1e-5, kind="layer", bias=True)
    layers = tuple(replace(layer, attn_norm=norm) for layer in spec.layers)
    spec = replace(spec, layers=layers, learned_positions=PositionTable(512))
    primitive = lower(spec)
    assert weight_bytes(primitive) == kept(primitive)
    assert weight_bytes(fuse(primitive)) == kept(fuse(primitive))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matrices_of_heads_are_counted(dtype: DType) -> None:
    latent = LatentSpec(kv_rank=128, nope_dim=32, rope_dim=32, v_dim=32, q_rank=64)
    plan = fuse(lower(over_latents(whole_panels(True, dtype), heads=4, latent=latent)))
    assert any(isinstance(op, HeadLinear) for op in plan.ops)
    assert weight_bytes(plan) == kept(plan)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_convolutions_are_counted(dtype: DType) -> None:
    plan = fuse(lower(convolved(whole_panels(True, dtype), "cac", kernel=4, bias=True)))
    assert weight_bytes(plan) == kept(plan)


def test_orders_of_columns_are_counted(tmp_path: Path) -> None:
    """One for each matrix, also where fusion had joined several."""
    plans = []
    for any_order in (False, True):
        folder = tmp_path / str(any_order)
        folder.mkdir()
        packed, _ = gptq_checkpoint(
            folder, bits=4, group=32, sym=True, shuffled=any_order, desc_act=any_order
        )
        plans.append(fuse(lower(load_model_spec(packed), quantization=Quantization())))
    in_order, ordered = plans
    orders = sum(
        len(op.parts) * op.k * 4
        for op in ordered.ops
        if isinstance(op, Linear) and op.scheme is not None
    )
    assert orders > 0
    assert kept(ordered) - kept(in_order) == orders
    assert weight_bytes(ordered) - weight_bytes(in_order) == orders


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
def test_options_resolve_to_it(tie: bool) -> None:
    """What the user is told, and what the KV cache is sized beside."""
    config = EngineConfig(backend="cpu", quantization="none", max_model_len=64, max_num_seqs=2)
    spec = whole_panels(tie, "bfloat16")
    decided = resolve(config, detect(), spec, Path("m"), Path("m"))
    assert decided.config.weight_bytes == weight_bytes(decided.plan) == kept(decided.plan)
    tables = 2 * spec.vocab_size * spec.hidden_size * 2
    assert decided.config.weight_bytes > tables
