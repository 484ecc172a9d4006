"""Lowering of attention over latents (MLA)."""

from __future__ import annotations

from penstock.models.spec import AttentionSpec, LatentSpec, NormSpec
from penstock.plan.lower.attention import window_and_chunk
from penstock.plan.lower.builder import PlanBuilder
from penstock.plan.ops import Attention, BufferName, Element, Join, KvWrite, Rope


def lower_latent_attention(
    build: PlanBuilder, index: int, a: AttentionSpec, x: BufferName
) -> BufferName:
    """Attention of layer ``index`` over latents, whose projections read x; its output projection.

    In the absorbed form: ``q . (k_up @ latent)`` is ``(q @ k_up) . latent``, and a weighted sum of
    ``v_up @ latent`` is ``v_up`` times that sum of latents. So heads attend to what is cached, and
    no key or value of a head is ever made. It costs more arithmetic than keys and values would
    where a step reads many tokens at once, and takes less wherever the cache is read. All rows take
    this form: with another one for prompts, a token's bits would depend on how its prompt was cut.
    """
    latent = a.latent
    assert latent is not None
    at, heads = f"layers.{index}.", a.num_heads
    hidden = x
    if latent.q_rank is not None:
        q_a = build.linear(x, at + "q_a", latent.q_rank, latent.bias)
        hidden = build.norm(at + "q_a_normed", at + "q_a_norm", NormSpec(latent.eps), q_a)
    nope = build.linear(
        hidden, at + "q_nope", heads * latent.nope_dim, bias=False, element=build.activation
    )
    turned = build.linear(hidden, at + "q_rope", heads * latent.rope_dim, bias=False)
    turned = _rotated(build, a, latent, turned, build.activation)
    absorbed = build.head_linear(nope, at + "k_up", heads, latent.kv_rank, transposed=True)
    q = build.new(at + "q", heads * latent.key_dim, build.activation)
    build.append(Join((absorbed, turned), q, heads))
    cache = build.cache_index(index if a.kv_from is None else a.kv_from)
    if a.kv_from is None:
        kv_a = build.linear(x, at + "kv_a", latent.kv_rank, latent.bias)
        normed = build.norm(
            at + "kv_a_normed", at + "kv_a_norm", NormSpec(latent.eps), kv_a, "float32"
        )
        key = build.linear(x, at + "k_rope", latent.rope_dim, latent.bias)
        key = _rotated(build, a, latent, key, "float32")
        keys = build.new(at + "keys", latent.key_dim)
        build.append(Join((normed, key), keys))
        build.append(KvWrite(cache, keys, None, 1, latent.key_dim, latent.kv_rank))
    attended = build.new(at + "attended", heads * latent.kv_rank, build.activation)
    window, chunk = window_and_chunk(a)
    build.append(
        Attention(
            layer=cache,
            q=q,
            out=attended,
            heads=heads,
            kv_heads=1,
            head_dim=latent.key_dim,
            scale=a.scale,
            window=window,
            softcap=a.softcap,
            sinks=build.weight(at + "sinks", heads) if a.sinks else None,
            chunk=chunk,
            value_dim=latent.kv_rank,
        )
    )
    values = build.head_linear(attended, at + "v_up", heads, latent.v_dim)
    return build.linear(values, at + "o", build.hidden_size, a.output_bias)


def _rotated(
    build: PlanBuilder, a: AttentionSpec, latent: LatentSpec, x: BufferName, element: Element
) -> BufferName:
    if a.rope is None:
        return x
    out = build.new(f"{x}.rotated", build.buffer(x).cols, element)
    build.append(Rope(x, out, latent.rope_dim, build.rope_index(a.rope)))
    return out
