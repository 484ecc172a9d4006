"""Ops that lowering emits, one for each line of a model's mathematics."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.models.activation import Activation, Gating
from penstock.models.position_scale import PositionScale
from penstock.plan.ops.base import BufferName, Op, WeightName


@dataclass(frozen=True)
class RmsNorm(Op):
    """``out = x * rsqrt(mean(x**2) + eps) * weight``, mean and product in float32.

    Without a weight, where it is None, what is normed is not multiplied.
    """

    _reads = ("x",)
    _writes = ("out",)
    _weights = ("weight",)
    x: BufferName
    out: BufferName
    weight: WeightName | None
    eps: float


@dataclass(frozen=True)
class LayerNorm(Op):
    """``out = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias``, in float32.

    The variance is the mean of squared differences from the mean. x ``[rows, c]`` float32; weight
    and bias ``[c]``, each absent where it is None; out in its element type.
    """

    _reads = ("x",)
    _writes = ("out",)
    _weights = ("weight", "bias")
    x: BufferName
    out: BufferName
    weight: WeightName | None
    bias: WeightName | None
    eps: float


@dataclass(frozen=True)
class Scale(Op):
    """``out = x * factor``, in float32. Both ``[rows, c]`` float32; out may be x."""

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    factor: float


@dataclass(frozen=True)
class SoftCap(Op):
    """``out = cap * tanh(x / cap)``, in float32. Both ``[rows, c]`` float32; out may be x."""

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    cap: float


@dataclass(frozen=True)
class ScaleBy(Op):
    """``out = x * weight[0]``, in float32. x and out ``[rows, c]`` float32, weight ``[1]``; out may
    be x."""

    _reads = ("x",)
    _writes = ("out",)
    _weights = ("weight",)
    x: BufferName
    out: BufferName
    weight: WeightName


@dataclass(frozen=True)
class Columns(Op):
    """``out = x[:, first : first + c]``, where out is ``[rows, c]``; both float32 and apart."""

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    first: int


@dataclass(frozen=True)
class Xielu(Op):
    """The activation xIELU (arXiv 2411.13010), in float32, rounded to out's element type.

    ``out = a * x * x + beta * x`` where x > 0, and ``(expm1(min(x, eps)) - x) * b + beta * x``
    elsewhere, with ``a = softplus(p)`` and ``b = beta + softplus(n)``. NaN stays NaN. x
    ``[rows, c]`` float32; out the same shape, and may be x where that is float32. The four weights
    are ``[1]`` each.
    """

    _reads = ("x",)
    _writes = ("out",)
    _weights = ("p", "n", "beta", "eps")
    x: BufferName
    out: BufferName
    p: WeightName
    n: WeightName
    beta: WeightName
    eps: WeightName


@dataclass(frozen=True)
class Clamp(Op):
    """``out = min(max(x, -limit), limit)``, where NaN stays NaN.

    Both ``[rows, c]`` float32; out may be x. ``limit`` is from 0 on.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    limit: float


@dataclass(frozen=True)
class AddPositions(Op):
    """``out[t] = x[t] + weight[positions[t] + offset]``, in float32.

    x and out ``[T, c]`` float32, and out may be x; weight ``[rows, c]``, which has a row for every
    position of the plan.
    """

    _reads = ("x",)
    _writes = ("out",)
    _weights = ("weight",)
    x: BufferName
    out: BufferName
    weight: WeightName
    offset: int


@dataclass(frozen=True)
class ScaleByPosition(Op):
    """``out[t] = x[t] * factor``, in float32, with ``scale``'s factor of the token's position.

    x ``[T, c]`` float32; out the same shape, rounded to its element type, and may be x where that
    is float32. The factors are those of ``PositionScale.factors``, in float32.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    scale: PositionScale


@dataclass(frozen=True)
class Add(Op):
    """``out = x + y``, added in float32; out may be x.

    All three float32, ``[rows, c]``. In both families: fusion leaves what no norm follows.
    """

    _reads = ("x", "y")
    _writes = ("out",)
    x: BufferName
    y: BufferName
    out: BufferName


@dataclass(frozen=True)
class HeadNorm(Op):
    """``RmsNorm``, or ``LayerNorm``, over each head's ``head_dim`` components.

    x ``[T, heads * head_dim]`` float32; out the same shape, rounded to its element type, and may be
    x where that is float32. Weight and bias are ``[head_dim]``, for all heads, or ``[heads,
    head_dim]`` where ``each_head``; each is absent where it is None. Only a LayerNorm has a bias.
    """

    _reads = ("x",)
    _writes = ("out",)
    _weights = ("weight", "bias")
    x: BufferName
    out: BufferName
    head_dim: int
    weight: WeightName | None
    eps: float
    centered: bool = False
    """Whether the norm is a LayerNorm."""
    bias: WeightName | None = None
    each_head: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is an RMS norm of all heads by one weight."""
        return self.weight is not None and not self.centered and not self.each_head


@dataclass(frozen=True)
class Rope(Op):
    """Rotate each head by the angles of its token's position.

    With ``(c, s)`` the rows of table ``rope`` at the position and ``h = dim / 2``:
    ``out[i] = x[i] c[i] - x[i + h] s[i]``, ``out[i + h] = x[i + h] c[i] + x[i] s[i]`` for
    ``i < h``; components from ``dim`` on are copied. Where the table's rotation is
    ``interleaved``, components ``2 i`` and ``2 i + 1`` are such a pair instead of ``i`` and
    ``i + h``.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    head_dim: int
    rope: int  # index into Plan.ropes


@dataclass(frozen=True)
class KvWrite(Op):
    """Store ``k[t]`` and ``v[t]``, each ``[kv_heads * head_dim]``, at ``slots[t]`` of ``layer``.

    In the cache's element type. An INT8 cache gets, for each head of k and of v by itself,
    ``scale = max|x| / 127`` in bfloat16 (nearest even) and ``code = x / scale`` rounded to nearest
    even; all codes are 0 where the scale is 0, or NaN because a value is not finite.

    Heads of k are turned first: runs of P components, P the largest power of two that divides their
    number, are multiplied by the Hadamard matrix of P rows over sqrt(P), in float32 (components
    over sqrt(P) first, then sums and differences of those 1, 2, 4 ... apart). This spreads a
    component that is larger than all others over its run. Queries that are turned likewise have the
    same products with turned keys.

    An INT4 cache has scales of max|x| / 8, and codes end at -8 and 7. Heads of v are turned, too,
    and sums of turned values are turned back, once they are added up. A cache in k8v4 has keys as
    an INT8 cache has them, and values as an INT4 cache.

    Where the plan has ``key_columns`` of the layer, its centers are subtracted from k and its
    factors divide the difference, before heads are turned, and queries are multiplied by the
    factors before they are.

    An FP8 cache gets, for each head of k and of v by itself, ``scale = max|x| / 448`` in bfloat16
    and ``x / scale``, clipped at -448 and 448, rounded to E4M3 (nearest even): zeros where an INT8
    cache has codes of 0.

    Without ``v`` the cache is of latents: the first ``value_dim`` components of k are the values,
    and k alone is stored, not turned. An INT8 cache then has two scales for each head of k, one of
    these components, and one of those behind them.
    """

    _reads = ("k", "v")
    layer: int
    k: BufferName
    v: BufferName | None
    kv_heads: int
    head_dim: int
    value_dim: int | None = None


@dataclass(frozen=True)
class Gate(Op):
    """``out = activation(gate) * up``, or what :class:`~penstock.models.spec.ClampedSwiglu` makes
    of the two."""

    _reads = ("gate", "up")
    _writes = ("out",)
    gate: BufferName
    up: BufferName
    out: BufferName
    activation: Gating


@dataclass(frozen=True)
class Activate(Op):
    """``out = activation(x)``, in float32, rounded to out's element type.

    x ``[rows, c]`` float32; out the same shape, and may be x where that is float32.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    activation: Activation
