"""Lowering of heads that draft (``models/draft_heads.py``)."""

from __future__ import annotations

from penstock.models.draft_heads import EagleSpec, MedusaSpec
from penstock.plan.lower.builder import RESIDUAL, PlanBuilder
from penstock.plan.lower.decoder import lower_layer, lower_output
from penstock.plan.ops import Activate, Add, BufferName, LinearPart, Rows
from penstock.plan.plan import Plan


def lower_medusa(build: PlanBuilder, spec: MedusaSpec) -> Plan:
    """Heads side by side. Rows are selected first, since every op works row by row."""
    x = build.select(build.features("features", 0, spec.hidden_size), "x")
    read = build.readable(x)
    logits = [_medusa_head(build, x, read, head, spec) for head in range(spec.num_heads)]
    argmax = build.argmax(logits[0])
    return build.finish(logits[0], argmax, x, more_logits=tuple(logits[1:]))


def _medusa_head(
    build: PlanBuilder, x: BufferName, read: BufferName, head: int, spec: MedusaSpec
) -> BufferName:
    """One head's logits; ``read`` is x as products read it."""
    for block in range(spec.num_blocks):
        at = f"heads.{head}.blocks.{block}."
        y = build.linear(read, at + "fc", spec.hidden_size, bias=True)
        build.append(Activate(y, y, "silu"))
        out = build.new(at + "x", spec.hidden_size, rows=Rows.SELECTED)
        build.append(Add(x, y, out))
        x, read = out, build.readable(out)
    at = "logits" if head == 0 else f"heads.{head}.logits"
    return build.logits(read, f"heads.{head}.head", spec.vocab_size, at)


def lower_eagle(build: PlanBuilder, spec: EagleSpec) -> Plan:
    """One layer over embeddings and features, and the output matrix."""
    read = _eagle1(build, spec) if spec.kind == "eagle1" else _eagle3(build, spec)
    (layer,) = spec.layers
    lower_layer(build, 0, layer, read)
    last = build.select(RESIDUAL, "last")
    norm = spec.final_norm
    if norm is None:
        output = build.readable(last)
    else:
        output = build.norm("last_normed", "final_norm", norm, last)
    logits = lower_output(build, spec, output, "head", spec.num_outputs)
    return build.finish(logits, build.argmax(logits), last, token_offsets=spec.token_offsets)


def _eagle1(build: PlanBuilder, spec: EagleSpec) -> BufferName:
    """The residual stream, and what attention reads: the same."""
    hidden = spec.hidden_size
    build.embed(embedded := "embedded")
    features = build.features("features", 0, hidden)
    _fc(build, build.join("joined", embedded, features), spec)
    return build.readable(RESIDUAL)


def _eagle3(build: PlanBuilder, spec: EagleSpec) -> BufferName:
    """The residual stream, and what attention reads: its norm beside the embedding's."""
    hidden, norm = spec.hidden_size, spec.input_norm
    assert norm is not None
    build.embed(embedded := "embedded")
    tokens = build.norm("embedded_normed", "layers.0.input_norm", norm, embedded)
    taps = build.features("taps", 0, spec.tapped_size)
    _fc(build, build.readable(taps), spec)
    before = build.features("before", spec.tapped_size, hidden)
    build.append(Add(RESIDUAL, before, RESIDUAL))
    features = build.norm("features_normed", "layers.0.feature_norm", norm)
    return build.join("joined", tokens, features)


def _fc(build: PlanBuilder, x: BufferName, spec: EagleSpec) -> None:
    bias = "fc.bias" if spec.fc_bias else None
    out = build.new(RESIDUAL, spec.hidden_size)
    part = LinearPart("fc", spec.hidden_size, bias)
    build.append(build.product(x, out, part))
