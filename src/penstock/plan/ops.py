"""The operations a model is lowered to, over named buffers.

A plan is a straight list of these. Every op is a frozen record: ``reads`` and ``writes`` name
the buffers it touches, weight fields hold canonical weight names (``models/spec.py``), and the
docstring is the contract that every backend implements. Rows of a buffer are tokens of the step
(``Rows.TOKENS``), those of them whose logits or hidden states are wanted (``Rows.SELECTED``), or
the first of these, whose logits are (``Rows.LOGITS``).

Two families: *primitive* ops, which lowering emits one per line of the model's mathematics, and
*fused* ops, which ``plan/fuse.py`` puts in their place. The reference backend runs both, so that
fusion is testable by itself; a fast backend need only run what fusion leaves.

The rule for every kernel: the result of a row depends on that row (and, in attention, on its own
sequence) alone, and is computed in the same order whatever else is in the step.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from itertools import chain
from typing import ClassVar, Literal

from penstock.models.spec import Activation
from penstock.quant.scheme import QuantScheme

BufferName = str
WeightName = str
Element = Literal["float32", "bfloat16", "float16", "int32"]


class Rows(enum.Enum):
    """Symbolic first dimension of a buffer."""

    TOKENS = "T"
    SELECTED = "S"
    """``logit_rows`` of the step, then its ``hidden_rows``."""
    LOGITS = "R"
    """``logit_rows``: the first of the selected."""


@dataclass(frozen=True)
class Buffer:
    """A ``[rows, cols]`` row-major array that lives within one step."""

    name: BufferName
    rows: Rows
    cols: int
    element: Element

    @property
    def row_bytes(self) -> int:
        return self.cols * (2 if self.element in ("bfloat16", "float16") else 4)


@dataclass(frozen=True)
class Op:
    """Base. Each class lists its fields that name buffers read and written, and weights."""

    _reads: ClassVar[tuple[str, ...]] = ()
    _writes: ClassVar[tuple[str, ...]] = ()
    _weights: ClassVar[tuple[str, ...]] = ()

    @property
    def reads(self) -> tuple[BufferName, ...]:
        """A field may name several."""
        named = (v for f in self._reads if (v := getattr(self, f)) is not None)
        return tuple(chain.from_iterable([v] if isinstance(v, str) else v for v in named))

    @property
    def writes(self) -> tuple[BufferName, ...]:
        return tuple(v for f in self._writes if (v := getattr(self, f)) is not None)

    @property
    def weights(self) -> tuple[WeightName, ...]:
        """Canonical weights this op needs, in the order of its fields."""
        return tuple(v for f in self._weights if (v := getattr(self, f)) is not None)

    @property
    def kind(self) -> str:
        return type(self).__name__

    def options(self) -> dict[str, object]:
        """Fields that are neither buffers nor weights; what ``explain`` prints."""
        hidden = {*self._reads, *self._writes, *self._weights, "parts"}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}


# --- both families ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Embed(Op):
    """``out[t] = weight[token_ids[t]]`` as float32. out ``[T, hidden]``."""

    _writes = ("out",)
    _weights = ("weight",)
    weight: WeightName
    out: BufferName


@dataclass(frozen=True)
class Features(Op):
    """``out[t] = features[t, first : first + cols]`` of the step. out ``[T, cols]`` float32."""

    _writes = ("out",)
    out: BufferName
    first: int
    cols: int


@dataclass(frozen=True)
class Join(Op):
    """The columns of ``xs`` side by side, rounded to out's element type.

    Each of ``xs`` ``[rows, c]`` in float32 or bfloat16, at least one; out ``[rows, sum of c]``,
    none of ``xs``. Of one alone this is a conversion.
    """

    _reads = ("xs",)
    _writes = ("out",)
    xs: tuple[BufferName, ...]
    out: BufferName


@dataclass(frozen=True)
class LinearPart:
    """One matrix ``[n, k]``, and bias ``[n]``, of a linear op whose parts' outputs are joined."""

    weight: WeightName
    n: int
    bias: WeightName | None = None


@dataclass(frozen=True)
class Linear(Op):
    """``out = act(x @ W.T + b)`` with W the row-wise concatenation of ``parts``.

    x ``[rows, k]`` in float32 or bfloat16, out ``[rows, n]`` in out's element type; products are
    accumulated in float32 over ascending k, never split. Where x has the selected rows and out
    those of logits, the first rows of x are multiplied. With ``gated`` there are exactly two
    parts of equal size, gate and up, and ``out = gated(x @ gate.T) * (x @ up.T)`` has
    ``n = part.n`` columns.

    With a ``scheme`` W is quantized by it, and x on the way, unless the op is ``weight_only``: the
    product is then one of integers.

    On the grid, each row of x is quantized to int8: ``x_scale = max|x| / 127`` in float32,
    ``x_code = x * (127 / max|x|)`` rounded to nearest even (scale and codes are 0 where max|x| is
    below 1e-30; a value that is not finite makes the scale NaN). ``x @ W.T`` is then
    ``float32(dot) * (x_scale * w_scale[n])``, with the dot of codes and points exact in int32.

    In groups, each row of x is quantized to
    int8 over the groups of k that W has: ``x_scale[g] = max|x| / 127`` in float32, ``x_code =
    x / x_scale[g]`` rounded to nearest even, at most 127 in magnitude (all 0 where the scale is
    0; a value that is not finite makes its group's scale NaN). ``x @ W.T`` is then the sum, in
    float32 over ascending g, of ``(x_scale[g] * w_scale[n, g]) * dot(x_code, w_point)``, with the
    dot over the columns of g exact in int32, and w_point the code less its group's zero point.

    ``weight_only``, x stays as it is, and its products with the points, which are whole numbers
    that bfloat16 holds exactly, are accumulated in float32 as without a scheme: on the grid over
    all of k and then times ``w_scale[n]``, in groups over the columns of g, the sum over ascending
    g of ``w_scale[n, g]`` times that.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    k: int
    parts: tuple[LinearPart, ...]
    gated: Activation | None = None
    scheme: QuantScheme | None = None
    weight_only: bool = False

    @property
    def n(self) -> int:
        return self.parts[0].n if self.gated else sum(p.n for p in self.parts)

    @property
    def weights(self) -> tuple[WeightName, ...]:
        return tuple(w for p in self.parts for w in (p.weight, p.bias) if w is not None)


@dataclass(frozen=True)
class Attention(Op):
    """Causal attention of this step's queries over the paged cache of ``layer``.

    q ``[T, heads * head_dim]``; out the same shape. Query head ``h`` uses KV head
    ``h // (heads / kv_heads)``. A query at position p sees cached positions
    ``max(0, p - window + 1) .. p``. Runs after the layer's K and V of this step are written, and
    reads them as they are cached: from an INT8 cache, code times scale. A row of a draft tree sees
    of this step's tokens its ancestors alone (``StepInput.tree_parents``), as if no others were.
    """

    _reads = ("q",)
    _writes = ("out",)
    layer: int
    q: BufferName
    out: BufferName
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None


@dataclass(frozen=True)
class SelectRows(Op):
    """``out[:, first : first + c] = x[[*logit_rows, *hidden_rows]]``: ``[T, c]`` to ``[S, ...]``.

    Of equal element types. Columns of out that no op writes hold anything.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    first: int = 0


@dataclass(frozen=True)
class Argmax(Op):
    """``out[r, 0]`` is the index of the largest of ``x[r]``; the lowest index on ties. int32.

    A NaN counts as the largest.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName


# --- primitive -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RmsNorm(Op):
    """``out = x * rsqrt(mean(x**2) + eps) * weight``, mean and product in float32."""

    _reads = ("x",)
    _writes = ("out",)
    _weights = ("weight",)
    x: BufferName
    out: BufferName
    weight: WeightName
    eps: float


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
    """RMS norm over each head's ``head_dim`` components. x and out ``[T, heads * head_dim]``."""

    _reads = ("x",)
    _writes = ("out",)
    _weights = ("weight",)
    x: BufferName
    out: BufferName
    head_dim: int
    weight: WeightName
    eps: float


@dataclass(frozen=True)
class Rope(Op):
    """Rotate each head by the angles of its token's position.

    With ``(c, s)`` the rows of table ``rope`` at the position and ``h = dim / 2``:
    ``out[i] = x[i] c[i] - x[i + h] s[i]``, ``out[i + h] = x[i + h] c[i] + x[i] s[i]`` for
    ``i < h``; components from ``dim`` on are copied.
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
    """

    _reads = ("k", "v")
    layer: int
    k: BufferName
    v: BufferName
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Gate(Op):
    """``out = activation(gate) * up``."""

    _reads = ("gate", "up")
    _writes = ("out",)
    gate: BufferName
    up: BufferName
    out: BufferName
    activation: Activation


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


# --- fused -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddNorm(Op):
    """``residual += delta`` (where there is one), then RMS norm of residual into out.

    residual ``[rows, c]`` float32, updated in place; delta float32; out in out's element type.
    """

    _reads = ("residual", "delta")
    _writes = ("residual", "out")
    _weights = ("weight",)
    residual: BufferName
    delta: BufferName | None
    out: BufferName
    weight: WeightName
    eps: float


@dataclass(frozen=True)
class AddActivated(Op):
    """``out = x + activation(y)``. All three float32 ``[rows, c]``; out may be x or y."""

    _reads = ("x", "y")
    _writes = ("out",)
    x: BufferName
    y: BufferName
    out: BufferName
    activation: Activation


@dataclass(frozen=True)
class RopeWrite(Op):
    """QK-norm (where the model has it), rotation of queries and keys, and the cache write.

    qkv ``[T, (heads + 2 * kv_heads) * head_dim]`` float32: queries, keys, values. q
    ``[T, heads * head_dim]`` receives the rotated queries in its element type; keys and values
    go to ``slots`` of ``layer`` as ``KvWrite`` puts them there.
    """

    _reads = ("qkv",)
    _writes = ("q",)
    _weights = ("q_norm", "k_norm")
    layer: int
    qkv: BufferName
    q: BufferName
    heads: int
    kv_heads: int
    head_dim: int
    rope: int
    q_norm: WeightName | None
    k_norm: WeightName | None
    eps: float
