"""Lowering of attention."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes

from penstock.models.spec import AttentionSpec, Chunk, NormSpec, QkNormSpec
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
    heads = _Heads(build, f"layers.{index}.", a, {})
    heads.project(x)
    heads.norm_and_rotate()
    cache = build.cache_index(index if a.kv_from is None else a.kv_from)
    attended = _attended(build, heads, cache)
    if a.output_gate:  # behind attention: of the last layer's rows, only those that are selected
        at, size = heads.at, a.num_heads * a.head_dim
        gate = build.linear(x, at + "attn_gate", size, a.has_bias("q"))
        gated = build.new(at + "gated", size, build.activation)
        build.append(Gate(gate, attended, gated, "sigmoid"))
        attended = gated
    return build.linear(attended, heads.at + "o", build.hidden_size, a.output_bias)


@dataclass
class _Heads:
    """Queries, keys and values of a layer on their way from their projections to attention."""

    build: PlanBuilder
    at: str
    """What the names of the layer's buffers and weights begin with."""
    a: AttentionSpec
    made: dict[str, BufferName]
    """Where "q", "k" and "v" are; "q" alone, where the layer reads the keys of another."""

    @property
    def turned(self) -> tuple[str, ...]:
        """What rotates."""
        return ("q", "k") if "k" in self.made else ("q",)

    def project(self, x: BufferName) -> None:
        """Add the projections of x, with their clamp where it is before norms."""
        build, a = self.build, self.a
        kv_size = a.num_kv_heads * a.head_dim
        sizes = {"q": a.num_heads * a.head_dim}
        if a.kv_from is None:
            sizes |= {"k": kv_size} if a.key_is_value else {"k": kv_size, "v": kv_size}
        for name, n in sizes.items():
            self.made[name] = build.linear(x, self.at + name, n, a.has_bias(name))
        if a.kv_from is None and a.key_is_value:
            self.made["v"] = build.new(self.at + "v", kv_size)
            build.append(Join((self.made["k"],), self.made["v"]))
        self._clamp(behind_norms=False)

    def norm_and_rotate(self) -> None:
        """Add norms of queries and keys, their rotation, and the norm of values."""
        norm, v_norm = self.a.qk_norm, self.a.v_norm
        if norm is not None and not norm.after_rope:
            self._norm(norm)
        self._clamp(behind_norms=True)
        self._rotate()
        if norm is not None and norm.after_rope:
            self._norm(norm)
        if v_norm is not None and "v" in self.made:
            each = QkNormSpec(v_norm.eps, kind=v_norm.kind, weight=v_norm.weight, bias=v_norm.bias)
            self.made["v"] = _norm(self.build, f"{self.at}v_norm", each, self.made["v"], self.a)

    def _clamp(self, behind_norms: bool) -> None:
        clamp = self.a.clamp
        if clamp is not None and clamp.behind_norms is behind_norms:
            self.build.append(*(Clamp(x, x, clamp.limit) for x in self.made.values()))

    def _norm(self, norm: QkNormSpec) -> None:
        for name in self.turned:
            weight = f"{self.at}{name}_norm"
            self.made[name] = _norm(self.build, weight, norm, self.made[name], self.a)

    def _rotate(self) -> None:
        build, a = self.build, self.a
        if a.rope is None:
            return
        rope = build.rope_index(a.rope)
        # Queries as products read them, once nothing else is done to them; keys are rounded to the
        # cache's type.
        normed = a.qk_norm is not None and a.qk_norm.after_rope
        last = a.position_scale is None and not normed
        for name in self.turned:
            element = build.activation if name == "q" and last else "float32"
            build.new(f"{self.at}rotated_{name}", build.buffer(self.made[name]).cols, element)
        for name in self.turned:
            build.append(Rope(self.made[name], f"{self.at}rotated_{name}", a.head_dim, rope))
            self.made[name] = f"{self.at}rotated_{name}"


def _attended(build: PlanBuilder, heads: _Heads, cache: int) -> BufferName:
    """Add the write of keys and values to the ``cache``, and attention."""
    a, at, made = heads.a, heads.at, heads.made
    size = a.num_heads * a.head_dim
    if a.position_scale is None:
        q = build.readable(made["q"])
    if a.kv_from is None:
        build.append(KvWrite(cache, made["k"], made["v"], a.num_kv_heads, a.head_dim))
    if a.position_scale is not None:  # behind the write, as rotations fuse with it
        q = build.new(f"{at}scaled_q", size, build.activation)
        build.append(ScaleByPosition(made["q"], q, a.position_scale))
    attended = build.new(at + "attended", size, "float32" if a.output_gate else build.activation)
    window, chunk = window_and_chunk(a)
    build.append(
        Attention(
            layer=cache,
            q=q,
            out=attended,
            heads=a.num_heads,
            kv_heads=a.num_kv_heads,
            head_dim=a.head_dim,
            scale=a.scale,
            window=window,
            softcap=a.softcap,
            slopes=_slopes(a),
            slope_factor=a.alibi.factor if a.alibi is not None and a.alibi.rounded else None,
            sinks=build.weight(at + "sinks", a.num_heads) if a.sinks else None,
            chunk=chunk,
        )
    )
    return attended


def window_and_chunk(a: AttentionSpec) -> tuple[int | None, int | None]:
    """What :class:`Attention` has for the window of ``a``: at most one of both."""
    return (None, a.window.size) if isinstance(a.window, Chunk) else (a.window, None)


def _norm(
    build: PlanBuilder, weight: str, norm: QkNormSpec, x: BufferName, a: AttentionSpec
) -> BufferName:
    """Add the norm of queries, keys or values; return the normed."""
    columns = build.buffer(x).cols
    if norm.over == "projection":
        whole = NormSpec(norm.eps, norm.kind, norm.bias, norm.weight)
        return build.norm(f"{x}.normed", weight, whole, x, "float32")
    shape = (columns // a.head_dim, a.head_dim) if norm.each_head else (a.head_dim,)
    build.append(
        HeadNorm(
            x,
            x,
            a.head_dim,
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
    if a.alibi.rounded:
        return tuple(float(ml_dtypes.bfloat16(slope)) for slope in slopes)
    return tuple(a.alibi.factor * slope for slope in slopes)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The slope of each head's scores (arXiv 2108.12409): ``2**(-8 i / heads)`` from i = 1 on.

    Where heads are no power of 2, the slopes of the power below it come first, and then every
    other one of those of twice as many.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-4.0 * i / power) for i in range(1, 2 * (heads - power), 2)]
    return tuple(slopes + between)
