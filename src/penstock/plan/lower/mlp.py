"""Lowering of MLPs and of mixtures of them."""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.models.spec import ExpertsSpec, MlpSpec
from penstock.plan.lower.builder import PlanBuilder
from penstock.plan.ops import (
    Activate,
    BufferName,
    CombineExperts,
    ExpertLinear,
    Gate,
    LinearPart,
    Route,
    Rows,
)


def lower_mlp(
    build: PlanBuilder, index: int, m: MlpSpec | ExpertsSpec, x: BufferName
) -> BufferName:
    """What the MLP of layer ``index`` makes of x, in float32."""
    if isinstance(m, ExpertsSpec):
        return _experts(build, index, m, x)
    at = f"layers.{index}."
    if m.gated:
        gate = build.linear(x, at + "gate", m.intermediate_size, m.bias)
        up = build.linear(x, at + "up", m.intermediate_size, m.bias)
        inner = build.new(at + "inner", m.intermediate_size, build.activation)
        build.append(Gate(gate, up, inner, m.activation))
    else:
        up = build.linear(x, at + "up", m.intermediate_size, m.bias)
        inner = build.new(at + "inner", m.intermediate_size, build.activation)
        build.append(Activate(up, inner, m.activation))
    return build.linear(inner, at + "down", build.hidden_size, m.bias)


def _experts(build: PlanBuilder, index: int, e: ExpertsSpec, x: BufferName) -> BufferName:
    """Products of only those experts that a token is routed to, and their weighted sum."""
    if build.stores_quantized:
        raise ConfigError(
            "weights of experts that a checkpoint has quantized are not read yet; take one in "
            "float32, bfloat16 or float16, which quantization int8 or int4 rounds when it is loaded"
        )
    at, routed = f"layers.{index}.", Rows("T", e.top_k)
    scores = build.new(at + "router", e.num_experts)
    build.append(build.product(x, scores, LinearPart(at + "router", e.num_experts), exact=True))
    ids = build.new(at + "expert_ids", e.top_k, "int32")
    shares = build.new(at + "expert_shares", e.top_k)
    build.append(Route(scores, ids, shares, e.scores, e.normalize))

    def part(name: str, n: int, k: int) -> LinearPart:
        return LinearPart(build.weight(f"{at}experts.{name}", e.num_experts, n, k), n)

    hidden, wide = build.hidden_size, e.intermediate_size
    inner = build.new(at + "inner", wide, build.activation, routed)
    gate, up = part("gate", wide, hidden), part("up", wide, hidden)
    rounding = build.rounding(gate.weight)
    build.append(ExpertLinear(x, ids, inner, hidden, (gate, up), e.activation, *rounding))
    outputs, down = build.new(at + "down", hidden, rows=routed), part("down", hidden, wide)
    rounding = build.rounding(down.weight)
    build.append(ExpertLinear(inner, ids, outputs, wide, (down,), None, *rounding))
    out = build.new(at + "experts", hidden)
    build.append(CombineExperts(outputs, shares, out))
    return out
