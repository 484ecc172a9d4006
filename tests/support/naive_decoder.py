"""A declared model computed from its declaration: whole sequences, no plan, no cache, float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.models.rope import rope_tables
from penstock.models.spec import (
    AttentionSpec,
    Chunk,
    ExpertsSpec,
    GatedDeltaSpec,
    Mixer,
    MixerSum,
    ModelSpec,
    NormSpec,
    Projection,
    RopeSpec,
    SelectiveSpec,
    ShortConvSpec,
    TokenInputsSpec,
)
from support.naive_mlp import activated, experts, linear, mlp, norm_of
from support.naive_states import gated_delta, selective

F64 = Any  # of float64; arithmetic of arrays is typed too loosely to be checked
Weight = Callable[[str], F64]


def logits_of(spec: ModelSpec, get: Callable[[str], NDArray[Any]], tokens: NDArray[Any]) -> F64:
    """Logits after each token of one sequence, ``[tokens, vocabulary]``."""

    def weight(name: str) -> F64:
        return np.asarray(get(name), np.float64)

    x = weight("embed")[tokens]
    if spec.embedding_scale is not None:
        x = x * spec.embedding_scale.factor
    if spec.learned_positions is not None:
        first = spec.learned_positions.offset
        x = x + weight("positions")[first : first + len(tokens)]
    if spec.embed_norm is not None:
        x = norm_of(x, spec.embed_norm, weight, "embed_norm")
    inputs = spec.token_inputs
    given = None if inputs is None else _token_inputs(spec, inputs, x, tokens, weight)
    kept: dict[int, tuple[F64, F64]] = {}
    for i, layer in enumerate(spec.layers):
        at = f"layers.{i}."

        def normed(x: F64, norm: NormSpec | None, name: str) -> F64:
            return x if norm is None else norm_of(x, norm, weight, name)

        h, mixed = normed(x, layer.attn_norm, at + "attn_norm"), 0.0
        if layer.mixer is not None:
            made = [_mixed(spec, i, mixer, h, kept, weight) for mixer in layer.mixers]
            factors = layer.mixer.factors if isinstance(layer.mixer, MixerSum) else (1.0,)
            mixed = sum(factor * each for factor, each in zip(factors, made, strict=True))
            mixed = normed(mixed, layer.attn_post_norm, at + "attn_post_norm")
            mixed = layer.residual_scale * mixed
        if not layer.parallel:
            x = x + mixed
        if layer.mlp is not None:
            g = normed(x, layer.mlp_norm, at + "mlp_norm")
            if layer.parallel and layer.mlp_norm is None:
                g = h
            if isinstance(layer.mlp, ExpertsSpec):
                out = experts(layer.mlp, g, x, weight, at)
            else:
                out = mlp(layer.mlp, g, weight, at)
            out = normed(out, layer.mlp_post_norm, at + "mlp_post_norm")
            x = x + layer.residual_scale * out
        if layer.parallel:
            x = x + mixed
        if inputs is not None and given is not None:
            own = given[:, i * inputs.size : (i + 1) * inputs.size]
            gate = activated(x @ weight(at + "token_gate").T, inputs.activation)
            made = (gate * own) @ weight(at + "token_up").T
            x = x + norm_of(made, NormSpec(inputs.eps), weight, at + "token_norm")
        if layer.output_scale:
            x = x * weight(at + "output_scale")
    if spec.final_norm is not None:
        x = norm_of(x, spec.final_norm, weight, "final_norm")
    logits = x @ weight("embed" if spec.tie_embeddings else "head").T
    if spec.head_bias:
        logits = logits + weight("head.bias")
    logits = logits * spec.logits_scale
    cap = spec.logits_softcap
    return logits if cap is None else cap * np.tanh(logits / cap)


def _mixed(
    spec: ModelSpec, i: int, mixer: Mixer, h: F64, kept: dict[int, tuple[F64, F64]], weight: Weight
) -> F64:
    """What the mixer of layer ``i`` makes of h; ``kept``: keys and values of the layers before."""
    at = f"layers.{i}."
    if isinstance(mixer, ShortConvSpec):
        return _short_conv(mixer, h, weight, at)
    if isinstance(mixer, GatedDeltaSpec):
        return gated_delta(mixer, h, weight, at)
    if isinstance(mixer, SelectiveSpec):
        return selective(mixer, h, weight, at)
    assert isinstance(mixer, AttentionSpec)
    if mixer.kv_from is None:
        made = _keys_and_values if mixer.latent is None else _latents
        kept[i] = made(spec, mixer, h, weight, at)
    cached = kept[i if mixer.kv_from is None else mixer.kv_from]
    return _attention(spec, mixer, h, cached, weight, at)


def _short_conv(conv: ShortConvSpec, h: F64, weight: Weight, at: str) -> F64:
    def projected(x: F64, name: str) -> F64:
        y = x @ weight(at + name).T
        return y + weight(f"{at}{name}.bias") if conv.bias else y

    b, c, x = (projected(h, name) for name in ("conv_b", "conv_c", "conv_x"))
    u, taps = b * x, weight(at + "conv")
    out = np.zeros_like(u)
    for t in range(len(u)):
        for j in range(conv.kernel):
            if t - conv.kernel + 1 + j >= 0:
                out[t] += taps[:, j] * u[t - conv.kernel + 1 + j]
    if conv.bias:
        out = out + weight(at + "conv.bias")
    return projected(c * out, "conv_out")


def _token_inputs(
    spec: ModelSpec, t: TokenInputsSpec, x: F64, tokens: NDArray[Any], weight: Weight
) -> F64:
    """The inputs of all layers, ``[tokens, layers * size]``."""
    projected = t.projection_scale * (x @ weight("token_inputs.project").T)
    rows = projected.reshape(len(tokens), len(spec.layers), t.size)
    normed = norm_of(rows, NormSpec(t.eps), weight, "token_inputs.norm").reshape(projected.shape)
    return t.scale * (normed + t.factor * weight("token_inputs.embed")[tokens])


def _biased(a: AttentionSpec, name: str) -> bool:
    return a.qkv_bias if isinstance(a.qkv_bias, bool) else name in a.qkv_bias


def _projected(
    spec: ModelSpec, a: AttentionSpec, x: F64, weight: Weight, at: str, name: str
) -> F64:
    """Queries or keys, normed and rotated: ``[tokens, heads, head_dim]``."""
    y = linear(x, weight, at + name, _biased(a, name))
    behind = a.clamp is not None and a.clamp.behind_norms
    if not behind:
        y = _clamped(a, y)

    def normed(heads: F64) -> F64:
        assert a.qk_norm is not None
        q = a.qk_norm
        norm = NormSpec(q.eps, q.kind, q.bias, q.weight)
        together = heads.reshape(len(x), -1) if q.over == "projection" else heads
        return norm_of(together, norm, weight, f"{at}{name}_norm").reshape(heads.shape)

    heads = y.reshape(len(x), -1, a.head_dim)
    if a.qk_norm is not None and not a.qk_norm.after_rope:
        heads = normed(heads)
    if behind:
        heads = _clamped(a, heads)
    if a.rope is not None:
        heads = _turned(spec, a.rope, heads)
    if a.qk_norm is not None and a.qk_norm.after_rope:
        heads = normed(heads)
    scale = a.position_scale
    if scale is not None and name == "q":
        for t in range(len(x)):
            heads[t] *= 1 + scale.beta * math.log(1 + (t + scale.offset) // scale.period)
    return heads


def _clamped(a: AttentionSpec, x: F64) -> F64:
    return x if a.clamp is None else np.clip(x, -a.clamp.limit, a.clamp.limit)


def _rotated(spec: ModelSpec, a: AttentionSpec, heads: F64) -> F64:
    """Heads ``[tokens, heads, components]`` of the tokens from position 0 on, rotated."""
    return heads if a.rope is None else _turned(spec, a.rope, heads)


def _turned(spec: ModelSpec, rope: RopeSpec, heads: F64) -> F64:
    rope = rope.for_context(spec.max_positions)
    cos, sin = (table[: len(heads), None] for table in rope_tables(rope, spec.max_positions))
    half = rope.dim // 2
    turned = heads.copy()
    for i in range(half):
        p, q = (2 * i, 2 * i + 1) if rope.interleaved else (i, i + half)
        turned[..., p] = heads[..., p] * cos[..., i] - heads[..., q] * sin[..., i]
        turned[..., q] = heads[..., q] * cos[..., i] + heads[..., p] * sin[..., i]
    return turned


def _keys_and_values(
    spec: ModelSpec, a: AttentionSpec, x: F64, weight: Weight, at: str
) -> tuple[F64, F64]:
    source: Projection = "k" if a.key_is_value else "v"
    values = _clamped(a, linear(x, weight, at + source, _biased(a, source)))
    values = values.reshape(len(x), -1, a.head_dim)
    if a.v_norm is not None:
        values = norm_of(values, a.v_norm, weight, at + "v_norm")
    return _projected(spec, a, x, weight, at, "k"), values


def _latents(spec: ModelSpec, a: AttentionSpec, x: F64, weight: Weight, at: str) -> tuple[F64, F64]:
    """Latents after their norm ``[tokens, rank]``, and rotated keys ``[tokens, 1, components]``."""
    latent = a.latent
    assert latent is not None
    made = linear(x, weight, at + "kv_a", latent.bias)
    key = linear(x, weight, at + "k_rope", latent.bias)
    normed = norm_of(made, NormSpec(latent.eps), weight, at + "kv_a_norm")
    return normed, _rotated(spec, a, key[:, None])


def _of_latents(
    spec: ModelSpec, a: AttentionSpec, x: F64, cached: tuple[F64, F64], weight: Weight, at: str
) -> tuple[F64, F64, F64]:
    """Queries, keys and values of each head, ``[tokens, heads, components]``."""
    latent = a.latent
    assert latent is not None
    if latent.q_rank is not None:
        made = linear(x, weight, at + "q_a", latent.bias)
        x = norm_of(made, NormSpec(latent.eps), weight, at + "q_a_norm")

    def heads(x: F64, name: str) -> F64:
        return linear(x, weight, at + name, bias=False).reshape(len(x), a.num_heads, -1)

    latents, key = cached
    keys = np.broadcast_to(key, (len(key), a.num_heads, latent.rope_dim))
    return (
        np.concatenate([heads(x, "q_nope"), _rotated(spec, a, heads(x, "q_rope"))], axis=-1),
        np.concatenate([heads(latents, "k_up"), keys], axis=-1),
        heads(latents, "v_up"),
    )


def _attention(
    spec: ModelSpec, a: AttentionSpec, x: F64, cached: tuple[F64, F64], weight: Weight, at: str
) -> F64:
    if a.latent is None:
        queries, (keys, values) = _projected(spec, a, x, weight, at, "q"), cached
    else:
        queries, keys, values = _of_latents(spec, a, x, cached, weight, at)
    out = np.zeros((*queries.shape[:2], values.shape[2]))
    for h in range(a.num_heads):
        kv = h * keys.shape[1] // a.num_heads
        for t in range(len(x)):
            if isinstance(a.window, Chunk):
                first = t // a.window.size * a.window.size
            else:
                first = 0 if a.window is None else max(0, t - a.window + 1)
            scores = keys[first : t + 1, kv] @ queries[t, h] * a.scale
            if a.softcap is not None:
                scores = a.softcap * np.tanh(scores / a.softcap)
            if a.alibi is not None:
                assert a.num_heads in (2, 4, 8)
                slope = 2.0 ** (-8.0 * (h + 1) / a.num_heads)
                places = slope * np.arange(t + 1)
                if a.alibi.rounded:
                    places = _bfloat16(_bfloat16(slope) * _bfloat16(np.arange(t + 1)))
                scores = scores + a.alibi.factor * (places[first:] - places[t])
            seen = values[first : t + 1, kv]
            if a.sinks:
                scores = np.append(scores, weight(at + "sinks")[h])
                seen = np.append(seen, np.zeros((1, seen.shape[1])), axis=0)
            shares = np.exp(scores - scores.max())
            out[t, h] = shares @ seen / shares.sum()
    flat = out.reshape(len(x), -1)
    if a.output_gate:
        flat = flat / (1 + np.exp(-linear(x, weight, at + "attn_gate", _biased(a, "q"))))
    return linear(flat, weight, at + "o", a.output_bias)


def _bfloat16(x: Any) -> F64:
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)
