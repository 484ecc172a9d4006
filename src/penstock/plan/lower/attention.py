"""Lowering of attention."""

from __future__ import annotations

import ml_dtypes

from penstock.models.spec import AttentionSpec, NormSpec, QkNormSpec
from penstock.plan.lower.builder import PlanBuilder
from penstock.plan.ops import (
    Attention,
    BufferName,
    Clamp,
    Gate,
    HeadNorm,
    Join,
    KvWrite,
    Rope,
    ScaleByPosition,
)


def lower_attention(build: PlanBuilder, index: int, a: AttentionSpec, x: BufferName) -> BufferName:
    """Add the attention of layer ``index``, which reads x; return its output projection."""
    at, own = f"layers.{index}.", a.kv_from is None
    q_size, kv_size = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    sizes = {"q": q_size, "k": kv_size, "v": kv_size} if own else {"q": q_size}
    if a.key_is_value:
        sizes.pop("v", None)
    made = {name: build.linear(x, at + name, n, a.has_bias(name)) for name, n in sizes.items()}
    if own and a.key_is_value:
        made["v"] = build.new(at + "v", kv_size)
        build.append(Join((made["k"],), made["v"]))
    if a.clip_qkv is not None and not a.clip_normed:
        build.append(*(Clamp(x, x, a.clip_qkv) for x in made.values()))
    turned, norm = ("q", "k") if own else ("q",), a.qk_norm
    if norm is not None and not norm.after_rope:
        for name in turned:
            made[name] = _norm(build, f"{at}{name}_norm", norm, made[name], a.head_dim)
    if a.clip_qkv is not None and a.clip_normed:
        build.append(*(Clamp(x, x, a.clip_qkv) for x in made.values()))
    if a.rope is not None:
        rope = build.rope_index(a.rope)
        # Queries as products read them, once nothing else is done to them; keys are rounded to the
        # cache's type.
        last = a.position_scale is None and (norm is None or not norm.after_rope)
        for name in turned:
            element = build.activation if name == "q" and last else "float32"
            build.new(f"{at}rotated_{name}", sizes[name], element)
        for name in turned:
            build.append(Rope(made[name], f"{at}rotated_{name}", a.head_dim, rope))
            made[name] = f"{at}rotated_{name}"
    if norm is not None and norm.after_rope:
        for name in turned:
            made[name] = _norm(build, f"{at}{name}_norm", norm, made[name], a.head_dim)
    if own and a.v_norm is not None:
        v = a.v_norm
        each = QkNormSpec(v.eps, kind=v.kind, weight=v.weight, bias=v.bias)
        made["v"] = _norm(build, f"{at}v_norm", each, made["v"], a.head_dim)
    cache = build.cache_index(index if a.kv_from is None else a.kv_from)
    if a.position_scale is None:
        q = build.readable(made["q"])
    if own:
        build.append(KvWrite(cache, made["k"], made["v"], a.num_kv_heads, a.head_dim))
    if a.position_scale is not None:  # behind the write, as rotations fuse with it
        q = build.new(f"{at}scaled_q", q_size, build.activation)
        build.append(ScaleByPosition(made["q"], q, a.position_scale))
    element = "float32" if a.output_gate else build.activation
    attended = build.new(at + "attended", q_size, element)
    build.append(
        Attention(
            layer=cache,
            q=q,
            out=attended,
            heads=a.num_heads,
            kv_heads=a.num_kv_heads,
            head_dim=a.head_dim,
            scale=a.scale,
            window=a.window,
            softcap=a.softcap,
            slopes=_slopes(a),
            slope_factor=a.alibi if a.alibi_rounded else None,
            sinks=build.weight(at + "sinks", a.num_heads) if a.sinks else None,
            chunk=a.chunk,
        )
    )
    if a.output_gate:  # behind attention: of the last layer's rows, only those that are selected
        gate = build.linear(x, at + "attn_gate", q_size, a.has_bias("q"))
        gated = build.new(at + "gated", q_size, build.activation)
        build.append(Gate(gate, attended, gated, "sigmoid"))
        attended = gated
    return build.linear(attended, at + "o", build.hidden_size, a.output_bias)


def _norm(
    build: PlanBuilder, weight: str, norm: QkNormSpec, x: BufferName, head_dim: int
) -> BufferName:
    """Add the norm of queries, keys or values; return the normed."""
    columns = build.buffer(x).cols
    if norm.over == "projection":
        whole = NormSpec(norm.eps, norm.kind, norm.bias, norm.weight)
        return build.norm(f"{x}.normed", weight, whole, x, "float32")
    shape = (columns // head_dim, head_dim) if norm.each_head else (head_dim,)
    build.append(
        HeadNorm(
            x,
            x,
            head_dim,
            build.weight(weight, *shape) if norm.weight else None,
            norm.eps,
            norm.kind == "layer",
            build.weight(f"{weight}.bias", *shape) if norm.bias else None,
            norm.each_head,
        )
    )
    return x


def _slopes(a: AttentionSpec) -> tuple[float, ...] | None:
    """Return the slope by which each head's scores fall with distance; None without ALiBi."""
    if a.alibi is None:
        return None
    slopes = alibi_slopes(a.num_heads)
    if a.alibi_rounded:
        return tuple(float(ml_dtypes.bfloat16(slope)) for slope in slopes)
    return tuple(a.alibi * slope for slope in slopes)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The slope of each head's scores (arXiv 2108.12409): ``2**(-8 i / heads)`` from i = 1 on.

    Where heads are no power of 2, the slopes of the power below it come first, and then every
    other one of those of twice as many.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-4.0 * i / power) for i in range(1, 2 * (heads - power), 2)]
    return tuple(slopes + between)
