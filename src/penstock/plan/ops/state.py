"""Ops that carry a state of each sequence from step to step, in *state slots*.

A slot holds the state of one sequence in all layers that keep one (``Plan.state_layers``); which
slot is whose is ``StepInput.states``, and an op's ``layer`` is an index into ``Plan.state_layers``.
A layer's part of a slot (``penstock.plan.state_layers.StateLayer``) has

- ``state``, float32: a matrix of each head, after the sequence's first ``seen`` tokens;
- ``conv``, in the type in which inputs of convolutions are kept (``Plan.state_dtype``): a ring of
  ``kernel - 1 + log`` rows; the row of position p is row ``p % (kernel - 1 + log)``;
- ``log``, float32: a ring of ``log`` rows (``Limits.state_log``), in which the row of position p is
  row ``p % log``: what corrected the state, or would, at positions from ``seen`` on.

Four rules hold for all of them:

1. *What is kept between steps is read as it was kept, also within the step.* So no result depends
   on where a sequence is cut into steps.
2. *Token by token.* The order of all sums is that of the op's docstring, and neither batch,
   threads nor chunks enter it.
3. *Tokens that may be taken back are logged.* The last ``tentative`` rows of a sequence are
   computed as all others, on a copy of the state, and their log rows are written; the state that is
   stored is that before them. A step whose first position is behind ``seen`` first applies the
   log's rows ``seen .. first position - 1`` to the state, as the step that wrote them did.
4. *A snapshot* ``(sequence, n, slot)`` is the state of the sequence's first n tokens, stored into
   another slot in passing: ``state`` after token ``n - 1``, replayed ones included, and the ring's
   rows ``n - kernel + 1 .. n - 1``.

Where ``seen`` is 0 nothing of ``state`` is read, and it is zeros; ring rows of positions before 0
are zeros, too, and are not read. Rows of ``state``, ring and log that these rules do not name may
hold anything. Draft trees are refused (``penstock.interface.step_check``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.plan.ops.base import BufferName, Op, WeightName


@dataclass(frozen=True)
class StateConv(Op):
    """A causal convolution of each channel over the tokens of a sequence, and SiLU of it.

    x ``[T, c]`` float32, weight ``[c, kernel]``, bias ``[c]`` or None, out ``[T, c]`` float32,
    which is not x. ``u[t]`` is x[t] rounded to the type in which it is kept (nearest even). In
    float32, from the bias or 0, one fused multiply-add a tap in ascending order of j:
    ``y[t] = bias + sum(weight[:, j] * u[t - kernel + 1 + j] for j in range(kernel))``, where tokens
    before position 0 are zeros and those before the step are read from the ring; then
    ``out[t] = silu(y[t])``, ``y / (1 + exp(-y))``, or y where not ``silu``. The rows of u of the
    last ``kernel - 1 + log`` tokens go to the ring.
    """

    mixes: ClassVar[bool] = True
    _reads = ("x",)
    _writes = ("out",)
    _weights = ("weight", "bias")
    layer: int
    x: BufferName
    out: BufferName
    weight: WeightName
    bias: WeightName | None
    kernel: int
    silu: bool = True


@dataclass(frozen=True)
class GatedDelta(Op):
    """The gated delta rule: each value head's state S ``[key_dim, value_dim]``, token after token.

    qkv ``[T, 2 * key_heads * key_dim + value_heads * value_dim]`` float32: queries, keys, values,
    head after head. ba ``[T, 2 * value_heads]`` float32: b of all value heads, then a. ``a_log``
    and ``dt_bias`` ``[value_heads]``. out ``[T, value_heads * value_dim]`` float32, apart from
    both. All in float32:

    - of a token and key head, ``k = key * rsqrt(sum(key**2) + 1e-6)``, and
      ``q = query * rsqrt(sum(query**2) + 1e-6) * key_dim**-0.5``;
    - of a token and value head, whose key head is ``head // (value_heads / key_heads)``, or
      ``head % key_heads`` if they are ``tiled``, ``beta = 1 / (1 + exp(-b))`` and
      ``decay = exp(-exp(a_log) * softplus(a + dt_bias))``, where ``softplus(x)`` is x above 20 and
      ``log1p(exp(x))`` elsewhere;
    - of a column j of S: ``m = decay * sum(k[i] * S[i, j] for i)``, ``d = beta * (v[j] - m)``,
      ``S[i, j] = fma(k[i], d, decay * S[i, j])``, and then
      ``out[j] = sum(q[i] * S[i, j] for i)``.

    Sums over i have four partial sums from 0, one for each ``i % 4``, each by fused multiply-adds
    in ascending order of i, which are added as ``(s0 + s1) + (s2 + s3)``. The sums of squares are
    of sixteen such partial sums (``i % 16``), added as ``simd.h`` adds the lanes of a register.

    A log row is, for each key head, k, and then for each value head v, decay and beta.
    """

    mixes: ClassVar[bool] = True
    _reads = ("qkv", "ba")
    _writes = ("out",)
    _weights = ("a_log", "dt_bias")
    layer: int
    qkv: BufferName
    ba: BufferName
    out: BufferName
    a_log: WeightName
    dt_bias: WeightName
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    tiled: bool = False


@dataclass(frozen=True)
class SelectiveScan(Op):
    """The selective scan of Mamba 2: each head's state h ``[head_dim, state]``, token after token.

    xbc ``[T, heads * head_dim + 2 * groups * state]`` float32: x head after head, then B and C
    group after group. dt ``[T, heads]`` float32. ``a_log``, ``dt_bias`` and ``d`` ``[heads]``. out
    ``[T, heads * head_dim]`` float32, apart from both. All in float32, for a head whose group is
    ``head // (heads / groups)``:

    - ``step = clamp(softplus(dt + dt_bias), *dt_limits)`` (softplus as in :class:`GatedDelta`) and
      ``decay = exp(-exp(a_log) * step)``;
    - of a row p of h: ``u = step * x[p]``, ``h[p, n] = fma(u, B[n], decay * h[p, n])``, and then
      ``out[p] = fma(d, x[p], sum(C[n] * h[p, n] for n))``, the sum over n in four partial sums as
      in :class:`GatedDelta`.

    A log row is, for each group, B, and then for each head u and decay.
    """

    mixes: ClassVar[bool] = True
    _reads = ("xbc", "dt")
    _writes = ("out",)
    _weights = ("a_log", "dt_bias", "d")
    layer: int
    xbc: BufferName
    dt: BufferName
    out: BufferName
    a_log: WeightName
    dt_bias: WeightName
    d: WeightName
    heads: int
    head_dim: int
    groups: int
    state: int
    dt_limits: tuple[float, float]


@dataclass(frozen=True)
class GatedNorm(Op):
    """An RMS norm of each ``size`` neighbouring columns, with a gate through SiLU; rows by
    themselves.

    x and gate ``[rows, c]`` float32, c a multiple of ``size``; out ``[rows, c]``, rounded to its
    element type, and may be x where that is float32. weight ``[size]``, one for all parts, or
    ``[c]`` where ``each_part``. In float32, with ``silu(y) = y / (1 + exp(-y))``:

    - ``gate_first``: ``y = x * silu(gate)``, ``out = y * rsqrt(mean(y**2) + eps) * weight``;
    - else: ``out = x * rsqrt(mean(x**2) + eps) * weight * silu(gate)``,

    multiplied from left to right.
    """

    _reads = ("x", "gate")
    _writes = ("out",)
    _weights = ("weight",)
    x: BufferName
    gate: BufferName
    out: BufferName
    weight: WeightName
    eps: float
    size: int
    gate_first: bool = False
    each_part: bool = False
