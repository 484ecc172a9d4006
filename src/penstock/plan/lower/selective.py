"""Lowering of selective scans."""

from __future__ import annotations

from penstock.models.spec import SelectiveSpec
from penstock.plan.lower.builder import PlanBuilder
from penstock.plan.ops import (
    BufferName,
    Gate,
    GatedNorm,
    LinearPart,
    Scale,
    SelectiveScan,
    StateConv,
)


def lower_selective(build: PlanBuilder, index: int, s: SelectiveSpec, x: BufferName) -> BufferName:
    """Add the selective scan of layer ``index``, which reads x; return its output projection."""
    at, layer = f"layers.{index}.scan.", build.state_index(index)
    xbc = build.linear(x, at + "xbc", s.conv_size, s.bias)
    convolved = build.new(at + "convolved", s.conv_size)
    weight = build.weight(at + "conv", s.conv_size, s.kernel, wide=True)
    bias = build.weight(at + "conv.bias", s.conv_size, wide=True) if s.conv_bias else None
    build.append(StateConv(layer, xbc, convolved, weight, bias, s.kernel))
    # Decays multiply over thousands of tokens, so what makes them is not rounded.
    dt = build.new(at + "dt", s.heads)
    part = LinearPart(dt, s.heads, f"{dt}.bias" if s.bias else None)
    build.append(build.product(x, dt, part, exact=True))
    if s.dt_factor != 1.0:
        build.append(Scale(dt, dt, s.dt_factor))
    read = build.new(at + "read", s.inner_size)
    build.append(
        SelectiveScan(
            layer=layer,
            xbc=convolved,
            dt=dt,
            out=read,
            a_log=build.weight(at + "a_log", s.heads, wide=True),
            dt_bias=build.weight(at + "dt_bias", s.heads, wide=True),
            d=build.weight(at + "d", s.heads, wide=True),
            heads=s.heads,
            head_dim=s.head_dim,
            groups=s.groups,
            state=s.state,
            dt_limits=s.dt_limits,
        )
    )
    # Behind the scan: of the last layer's rows, only those that are selected.
    z = build.linear(x, at + "z", s.inner_size, s.bias)
    if s.z_factor != 1.0:
        build.append(Scale(z, z, s.z_factor))
    normed = build.new(at + "normed", s.inner_size, build.activation)
    if s.eps is None:
        build.append(Gate(z, read, normed, "silu"))
        return build.linear(normed, at + "o", build.hidden_size, s.output_bias)
    build.append(
        GatedNorm(
            x=read,
            gate=z,
            out=normed,
            weight=build.weight(at + "norm", s.inner_size),
            eps=s.eps,
            size=s.inner_size // s.groups,
            gate_first=s.gate_first,
            each_part=True,
        )
    )
    return build.linear(normed, at + "o", build.hidden_size, s.output_bias)
