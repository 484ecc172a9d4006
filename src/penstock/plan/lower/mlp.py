"""Lowering of MLPs and of mixtures of them."""

from __future__ import annotations

from penstock.models.spec import ExpertsSpec, Gating, MlpSpec, NormSpec
from penstock.plan.lower.builder import PlanBuilder, require_alike
from penstock.plan.ops import (
    Activate,
    Add,
    BufferName,
    CombineExperts,
    ExpertLinear,
    Gate,
    LinearPart,
    Route,
    Rows,
    Scale,
    ScaleRows,
    WeightName,
    Xielu,
)


def lower_mlp(
    build: PlanBuilder, index: int, m: MlpSpec | ExpertsSpec, x: BufferName
) -> BufferName:
    """What the MLP of layer ``index`` makes of x, in float32."""
    at = f"layers.{index}."
    if isinstance(m, ExpertsSpec):
        return _experts(build, at, m, x)
    if m.gated and m.activation != "xielu":
        made = _gated(build, at, x, m.intermediate_size, m.activation, m.bias, m.gate_factor)
    else:
        made = _plain(build, at, x, m)
    if m.output_factor != 1.0:
        build.append(Scale(made, made, m.output_factor))
    return made


def _plain(build: PlanBuilder, at: str, x: BufferName, m: MlpSpec) -> BufferName:
    """An MLP without a gate whose weights' names begin with ``at``."""
    up = build.linear(x, at + "up", m.intermediate_size, m.bias)
    inner = build.new(at + "inner", m.intermediate_size, build.activation)
    if m.activation == "xielu":
        numbers = (build.weight(f"{at}act_{name}", 1) for name in ("p", "n", "beta", "eps"))
        build.append(Xielu(up, inner, *numbers))
    else:
        build.append(Activate(up, inner, m.activation))
    return build.linear(inner, at + "down", build.hidden_size, m.bias)


def _gated(
    build: PlanBuilder,
    at: str,
    x: BufferName,
    wide: int,
    activation: Gating,
    bias: bool,
    gate_factor: float = 1.0,
) -> BufferName:
    """A gated MLP whose weights' names begin with ``at``."""
    gate = build.linear(x, at + "gate", wide, bias)
    if gate_factor != 1.0:
        build.append(Scale(gate, gate, gate_factor))
    up = build.linear(x, at + "up", wide, bias)
    inner = build.new(at + "inner", wide, build.activation)
    build.append(Gate(gate, up, inner, activation))
    return build.linear(inner, at + "down", build.hidden_size, bias)


def _experts(build: PlanBuilder, at: str, e: ExpertsSpec, x: BufferName) -> BufferName:
    """Products of only those experts that a token is routed to, and their sum; what every token is
    given to is added to it."""
    norms, given_to_all = e.norms, x
    routing_x = x
    if norms is not None:
        norm = NormSpec(norms.eps)
        routing_x = build.norm(at + "router_x", at + "router_norm", norm)
        x = build.norm(at + "experts_x", at + "experts_norm", norm)
    ids, shares = _route(build, at, e, routing_x)
    given = x
    if e.latent is not None:
        given = build.readable(build.linear(x, at + "latent_in", e.latent, e.latent_bias))
    hidden, wide, routed = build.buffer(given).cols, e.intermediate_size, Rows("T", e.top_k)

    by: BufferName | None = shares
    if e.shares_on == "inputs":
        scaled = build.new(at + "given", hidden, build.activation, routed)
        build.append(ScaleRows(given, shares, scaled))
        given, by = scaled, None
    inner = build.new(at + "inner", wide, build.activation, routed)
    if e.gates:
        _expert_linear(build, at, e, given, ids, inner, ("gate", "up"), e.activation)
    else:
        raised = build.new(at + "raised", wide, rows=routed)
        _expert_linear(build, at, e, given, ids, raised, ("up",))
        assert isinstance(e.activation, str)
        build.append(Activate(raised, inner, e.activation))
    outputs = build.new(at + "down", hidden, rows=routed)
    _expert_linear(build, at, e, inner, ids, outputs, ("down",))
    out = build.new(at + "experts", hidden)
    build.append(CombineExperts(outputs, by, out))
    if e.latent is not None:
        out = build.linear(build.readable(out), at + "latent_out", build.hidden_size, e.latent_bias)
    if e.shared is None:
        return out
    shared = _shared(build, at + "shared.", e, given_to_all)
    if norms is not None:
        norm = NormSpec(norms.eps)
        out = build.norm(at + "experts_normed", at + "experts_post_norm", norm, out, "float32")
        at_shared = at + "shared_normed"
        shared = build.norm(at_shared, at + "shared_post_norm", norm, shared, "float32")
    build.append(Add(out, shared, out))
    return out


def _expert_linear(
    build: PlanBuilder,
    at: str,
    e: ExpertsSpec,
    x: BufferName,
    ids: BufferName,
    out: BufferName,
    names: tuple[str, ...],
    gated: Gating | None = None,
) -> None:
    """Products of x with matrices ``names`` of the experts ``ids``, into out."""
    n, k = build.buffer(out).cols, build.buffer(x).cols
    parts = []
    for name in names:
        weight = build.weight(f"{at}experts.{name}", e.num_experts, n, k)
        bias = build.weight(f"{weight}.bias", e.num_experts, n) if e.bias else None
        parts.append(LinearPart(weight, n, bias))
    stored = build.weights.as_stored([part.weight for part in parts], k)
    roundings = [
        build.weights.rounding(part.weight, k, stored=stored, stack=True) for part in parts
    ]
    require_alike({part.weight: each[0] for part, each in zip(parts, roundings, strict=True)})
    build.append(ExpertLinear(x, ids, out, k, tuple(parts), gated, *roundings[0]))


def _route(
    build: PlanBuilder, at: str, e: ExpertsSpec, x: BufferName
) -> tuple[BufferName, BufferName]:
    """The ids of each token's experts, and their shares."""
    r, router = e.routing, at + "router"
    logits = build.new(router, e.num_experts)
    bias = f"{router}.bias" if r.bias else None
    build.append(build.product(x, logits, LinearPart(router, e.num_experts, bias), exact=True))
    if e.norms is not None:
        build.append(Scale(logits, logits, e.norms.router_scale))
    ids = build.new(at + "expert_ids", e.top_k, "int32")
    shares = build.new(at + "expert_shares", e.top_k)

    def numbers(name: str, there: bool) -> WeightName | None:
        return build.weight(f"{router}.{name}", e.num_experts, wide=True) if there else None

    choice, scale = numbers("choice_bias", r.choice_bias), numbers("share_scale", r.share_scale)
    build.append(Route(logits, ids, shares, r, choice, scale))
    return ids, shares


def _shared(build: PlanBuilder, at: str, e: ExpertsSpec, x: BufferName) -> BufferName:
    """The expert that every token is given to."""
    shared = e.shared
    assert shared is not None
    wide, bias = shared.intermediate_size, shared.bias
    if e.gates:
        made = _gated(build, at, x, wide, e.activation, bias)
    else:
        assert isinstance(e.activation, str)
        made = _plain(build, at, x, MlpSpec(wide, e.activation, bias, gated=False))
    if shared.gated:
        share = build.new(at + "share", 1)
        build.append(build.product(x, share, LinearPart(at + "share", 1), exact=True))
        build.append(ScaleRows(made, share, made, sigmoid=True))
    return made
