"""Ops that are in primitive and in fused plans."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.models.activation import Gating
from penstock.plan.ops.base import BufferName, Op, WeightName
from penstock.quant.scheme import QuantScheme, TableScheme


@dataclass(frozen=True)
class Embed(Op):
    """``out[t] = weight[token_ids[t]]`` as float32. out ``[T, hidden]``.

    With a ``scheme`` the table is in blocks, and a row is what their decoder makes of it; or in
    groups, and an element is its code less the group's zero point, times the group's scale.
    """

    _writes = ("out",)
    _weights = ("weight",)
    weight: WeightName
    out: BufferName
    scheme: TableScheme | None = None


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

    Each of ``xs`` ``[rows, c]`` in float32 or the plan's 16-bit type, at least one; out
    ``[rows, sum of c]``, none of ``xs``. Of one alone this is a conversion.

    With ``heads`` all of them have so many heads: equal shares of their columns. Then a head's
    columns of ``xs`` stand side by side in the same head of out.
    """

    _reads = ("xs",)
    _writes = ("out",)
    xs: tuple[BufferName, ...]
    out: BufferName
    heads: int | None = None


@dataclass(frozen=True)
class LinearPart:
    """One matrix ``[n, k]``, and bias ``[n]``, of a linear op whose parts' outputs are joined."""

    weight: WeightName
    n: int
    bias: WeightName | None = None


@dataclass(frozen=True)
class Linear(Op):
    """``out = act(x @ W.T + b)`` with W the row-wise concatenation of ``parts``.

    x ``[rows, k]`` in float32 or the plan's 16-bit type, out ``[rows, n]`` in out's element type;
    products are accumulated in float32 over ascending k, never split. Where x has the selected
    rows and out those of logits, the first rows of x are multiplied. With ``gated`` there are
    exactly two parts of equal size, gate and up, and ``out = gated(x @ gate.T) * (x @ up.T)``, or
    what :class:`~penstock.models.spec.ClampedSwiglu` makes of the two, has ``n = part.n`` columns.

    With a ``scheme`` W is quantized by it, and x on the way, unless the op is ``weight_only``: the
    product is then one of integers.

    On the grid, rows of W and of x are transformed by blocks of columns (:func:`transform_weights
    <penstock.quant.hadamard.transform_weights>` and :func:`transform_rows
    <penstock.quant.hadamard.transform_rows>`) before they are quantized, which leaves products
    as they are. Each row of x is then quantized to int8: ``x_scale = max|x| / 127`` in float32,
    ``x_code = x * (127 / max|x|)`` rounded to nearest even (scale and codes are 0 where max|x| is
    below 1e-30; a value that is not finite makes the scale NaN). ``x @ W.T`` is then
    ``float32(dot) * (x_scale * w_scale[n])``, with the dot of codes and points exact in int32.

    In groups, each row of x is quantized to
    int8 over the groups of k that W has: ``x_scale[g] = max|x| / 127`` in float32, ``x_code =
    x / x_scale[g]`` rounded to nearest even, at most 127 in magnitude (all 0 where the scale is
    0; a value that is not finite makes its group's scale NaN). ``x @ W.T`` is then the sum, in
    float32 over ascending g, of ``(x_scale[g] * w_scale[n, g]) * dot(x_code, w_point)``, with the
    dot over the columns of g exact in int32, and w_point the code less its group's zero point.
    Where a checkpoint has its columns in an order of its own (``GroupTensor.order``), x is what has
    been put into that order.

    In blocks (:class:`~penstock.quant.scheme.BlockScheme`) the decoder's values are
    ``w_scale[n, g] * w_point + w_least[n, g]``, where g is a group of 32 columns, or of 16 in Q2_K,
    Q3_K, Q6_K, NVFP4 and NVFP4_SCALED, and formats without least values have zeros. x is quantized
    over groups of 32 columns as above, of superblocks, too. ``x @ W.T`` is then the sum, in float32
    over ascending g, of ``(x_scale[g] * w_scale[n, g]) * dot(x_code, w_point)`` and, where there
    are least values, of ``w_least[n, g] * (x_scale[g] * sum(x_code))``, with both sums over the
    columns of g exact in int32.

    ``weight_only``, x stays as it is, and its products with the points, which are whole numbers
    that bfloat16 holds exactly, are accumulated in float32 as without a scheme: on the grid over
    all of k and then times ``w_scale[n]``, in groups over the columns of g, the sum over ascending
    g of ``w_scale[n, g]`` times that; in blocks, also of ``w_least[n, g]`` times the sum of x over
    g. Blocks whose points are no whole numbers (``BlockScheme.whole``) are always multiplied so; a
    backend that multiplies pairs of bfloat16 may round theirs to it.

    On the lattice (:class:`~penstock.quant.scheme.LatticeScheme`, always ``weight_only``) a part's
    matrix is a :class:`~penstock.quant.lattice_matrix.LatticeMatrix`. Each row of x is turned as
    its columns were (:class:`~penstock.quant.turn.Turn`), multiplied by the points, with float32
    sums, and by the scale; what comes of it is turned back, as its rows were turned. Where a part
    is some rows of a matrix, all are computed for that. Bias and gate come last.

    In codebooks of rows (:class:`~penstock.quant.scheme.CodebookScheme`, always ``weight_only``) a
    part's matrix is a :class:`~penstock.quant.codebook_matrix.CodebookMatrix`. ``x @ W.T`` is
    accumulated in float32 as without a scheme; a backend may round values and outliers to the
    plan's type of weights, and may add what an outlier has more than its code names as a term of
    its own.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    k: int
    parts: tuple[LinearPart, ...]
    gated: Gating | None = None
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
    ``max(0, p - window + 1) .. p``, or with a ``chunk`` in the place of a window
    ``p // chunk * chunk .. p``. Runs after the layer's K and V of this step are written, and
    reads them as they are cached: from an INT8 cache, code times scale. A row of a draft tree sees
    of this step's tokens its ancestors alone (``StepInput.tree_parents``), as if no others were.

    The score of a key is ``q . k * scale``, in float32. With a ``softcap`` it becomes
    ``softcap * tanh(score / softcap)``. With ``slopes`` (ALiBi; one for each head) it then gets
    ``slopes[h] * (key's position - query's)``, or with a ``slope_factor``
    ``slope_factor * (b(slopes[h] * b(key's position)) - b(slopes[h] * b(query's)))``, where b
    rounds to bfloat16. With ``sinks``, a weight ``[heads]``, the softmax has one more score,
    ``sinks[h]``, that has no value.

    With ``value_dim`` the layer's cache is of latents: a key's first ``value_dim`` components are
    its value, and out is ``[T, heads * value_dim]``.
    """

    _reads = ("q",)
    _writes = ("out",)
    _weights = ("sinks",)
    mixes = True
    layer: int
    q: BufferName
    out: BufferName
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    softcap: float | None = None
    slopes: tuple[float, ...] | None = None
    sinks: WeightName | None = None
    chunk: int | None = None
    value_dim: int | None = None
    slope_factor: float | None = None


@dataclass(frozen=True)
class AllGather(Op):
    """The columns of all ranks' ``x``, each in its place in out.

    x ``[rows, c]``, where c need not be the same on all ranks; out ``[rows, columns]``, of the same
    element type and apart from x. Rank r's x goes to the columns ``ranks[r]`` (first, end) of out.
    Together these are all of out; where ranks have the same ones, what they have is equal. All
    ranks of a group run the same ops in the same order, over the same rows.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    ranks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GatherToFirst(Op):
    """What :class:`AllGather` does, for rank 0 alone: other ranks only give what they have, and
    their out is None.

    Logits are gathered so, since rank 0 alone draws. It receives all of them. Sums of probabilities
    are whole numbers, so ranks could sum, sort and cut their own columns with the same bits; but
    penalties, grammars and reports of log-probabilities would have to go to every rank then, all to
    save one copy: of a row of 128,256 logits at two ranks 250 KiB, beside the gigabytes of weights
    that a step of such a model reads.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName | None
    ranks: tuple[tuple[int, int], ...]


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
