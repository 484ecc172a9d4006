"""Lowering of gated delta nets."""

from __future__ import annotations

from penstock.models.spec import GatedDeltaSpec
from penstock.plan.lower.builder import PlanBuilder
from penstock.plan.ops import BufferName, GatedDelta, GatedNorm, LinearPart, StateConv


def lower_gated_delta(
    build: PlanBuilder, index: int, d: GatedDeltaSpec, x: BufferName
) -> BufferName:
    """Add the gated delta net of layer ``index``, which reads x; return its output projection."""
    at, layer = f"layers.{index}.delta.", build.state_index(index)
    sizes = {"q": d.key_size, "k": d.key_size, "v": d.value_size}
    qkv = build.joined(x, at + "qkv", [LinearPart(at + name, n) for name, n in sizes.items()])
    channels = build.buffer(qkv).cols
    convolved = build.new(at + "convolved", channels)
    weight = build.weight(at + "conv", channels, d.kernel, wide=True)
    build.append(StateConv(layer, qkv, convolved, weight, None, d.kernel))
    # Decays multiply over thousands of tokens, so what makes them is not rounded.
    gates = [LinearPart(at + name, d.value_heads) for name in ("b", "a")]
    ba = build.joined(x, at + "ba", gates, exact=True)
    read = build.new(at + "read", d.value_size)
    build.append(
        GatedDelta(
            layer=layer,
            qkv=convolved,
            ba=ba,
            out=read,
            a_log=build.weight(at + "a_log", d.value_heads, wide=True),
            dt_bias=build.weight(at + "dt_bias", d.value_heads, wide=True),
            key_heads=d.key_heads,
            value_heads=d.value_heads,
            key_dim=d.key_dim,
            value_dim=d.value_dim,
            tiled=d.tiled,
        )
    )
    # Behind the scan: of the last layer's rows, only those that are selected.
    z = build.linear(x, at + "z", d.value_size, bias=False)
    normed = build.new(at + "normed", d.value_size, build.activation)
    norm = build.weight(at + "norm", d.value_dim)
    build.append(GatedNorm(read, z, normed, norm, d.eps, d.value_dim))
    return build.linear(normed, at + "o", build.hidden_size, bias=False)
