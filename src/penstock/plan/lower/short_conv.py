"""Lowering of gated convolutions along the sequence."""

from __future__ import annotations

from penstock.models.spec import ShortConvSpec
from penstock.plan.lower.builder import PlanBuilder
from penstock.plan.ops import BufferName, Gate, ShortConv


def lower_short_conv(
    build: PlanBuilder, index: int, conv: ShortConvSpec, x: BufferName
) -> BufferName:
    """Add the convolution of layer ``index``, whose products read x; return its output projection.

    The output's gate is projected behind the convolution: in the last layer, only of the rows that
    are selected.
    """
    at, size = f"layers.{index}.", conv.size
    gate = build.linear(x, at + "conv_b", size, conv.bias)
    values = build.linear(x, at + "conv_x", size, conv.bias)
    inner = build.new(at + "conv_in", size)
    build.append(Gate(gate, values, inner, "identity"))
    convolved = build.new(at + "convolved", size)
    build.append(
        ShortConv(
            layer=build.cache_index(index),
            x=inner,
            out=convolved,
            weight=build.weight(at + "conv", size, conv.kernel),
            bias=build.weight(at + "conv.bias", size) if conv.bias else None,
            kernel=conv.kernel,
        )
    )
    out_gate = build.linear(x, at + "conv_c", size, conv.bias)
    gated = build.new(at + "conv_gated", size, build.activation)
    build.append(Gate(out_gate, convolved, gated, "identity"))
    return build.linear(gated, at + "conv_out", build.hidden_size, conv.bias)
