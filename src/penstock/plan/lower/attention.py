"""Lowering of attention."""

from __future__ import annotations

from penstock.models.spec import AttentionSpec, QkNormSpec
from penstock.plan.lower.builder import PlanBuilder
from penstock.plan.ops import Attention, BufferName, HeadNorm, KvWrite, RmsNorm, Rope


def lower_attention(build: PlanBuilder, index: int, a: AttentionSpec, x: BufferName) -> BufferName:
    """Attention of layer ``index``, whose projections read x; its output projection."""
    at, own = f"layers.{index}.", a.kv_from is None
    q_size, kv_size = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    sizes = {"q": q_size, "k": kv_size, "v": kv_size} if own else {"q": q_size}
    made = {name: build.linear(x, at + name, n, a.has_bias(name)) for name, n in sizes.items()}
    turned = ("q", "k") if own else ("q",)
    if a.qk_norm is not None:
        for name in turned:
            made[name] = _norm(build, f"{at}{name}_norm", a.qk_norm, made[name], a.head_dim)
    if a.rope is not None:
        rope = build.rope_index(a.rope)
        for name in turned:  # queries as products read them; keys are rounded to the cache's type
            element = build.activation if name == "q" else "float32"
            build.new(f"{at}rotated_{name}", sizes[name], element)
        for name in turned:
            build.append(Rope(made[name], f"{at}rotated_{name}", a.head_dim, rope))
            made[name] = f"{at}rotated_{name}"
    q = build.readable(made["q"])
    cache = build.cache_index(index if a.kv_from is None else a.kv_from)
    if own:
        build.append(KvWrite(cache, made["k"], made["v"], a.num_kv_heads, a.head_dim))
    attended = build.new(at + "attended", q_size, build.activation)
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
            slopes=alibi_slopes(a.num_heads) if a.alibi else None,
            sinks=build.weight(at + "sinks", a.num_heads) if a.sinks else None,
        )
    )
    return build.linear(attended, at + "o", build.hidden_size, a.output_bias)


def _norm(
    build: PlanBuilder, weight: str, norm: QkNormSpec, x: BufferName, head_dim: int
) -> BufferName:
    """Queries or keys after their norm."""
    if norm.over == "head":
        build.append(HeadNorm(x, x, head_dim, build.weight(weight, head_dim), norm.eps))
        return x
    columns = build.buffer(x).cols
    out = build.new(f"{x}.normed", columns)
    build.append(RmsNorm(x, out, build.weight(weight, columns), norm.eps))
    return out


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The slope of each head's scores (arXiv 2108.12409): ``2**(-8 i / heads)`` from i = 1 on.

    Where heads are no power of 2, the slopes of the power below it come first, and then every
    other one of those of twice as many.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-4.0 * i / power) for i in range(1, 2 * (heads - power), 2)]
    return tuple(slopes + between)
