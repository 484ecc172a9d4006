"""Lowering: from a declared model to primitive ops, one per line of its mathematics."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cache.geometry import KvDType
from penstock.errors import ModelError
from penstock.models.spec import DType, LayerSpec, ModelSpec, RopeSpec
from penstock.plan.ops import (
    Add,
    Argmax,
    Attention,
    Buffer,
    BufferName,
    Element,
    Embed,
    Gate,
    HeadNorm,
    KvWrite,
    Linear,
    LinearPart,
    Op,
    RmsNorm,
    Rope,
    Rows,
    SelectRows,
)
from penstock.plan.plan import KvLayer, Plan
from penstock.quant.scheme import Quantization, QuantScheme

RESIDUAL = "x"
TAPS = "taps"
_NOT_QUANTIZED = Quantization()


def lower(
    spec: ModelSpec,
    dtype: DType | None = None,
    max_positions: int | None = None,
    quantization: Quantization = _NOT_QUANTIZED,
    kv_dtype: KvDType | None = None,
    taps: Sequence[int] = (),
) -> Plan:
    """The primitive plan of ``spec`` with weights in ``dtype`` (default: the checkpoint's).

    ``max_positions`` bounds the rope tables (default: the model's own limit); ``quantization``
    says which matrices are quantized (default: none), ``kv_dtype`` what the KV cache holds
    (default: ``dtype``).

    ``taps`` are layers, counted from 0, at whose input the residual stream is told
    (``Plan.taps``), in this order; one may be named more than once. Raises ModelError where the
    model has no such layer.
    """
    dtype = dtype or spec.dtype
    positions = max_positions or spec.max_positions
    return _Lowering(spec, dtype, positions, quantization, kv_dtype or dtype, taps).plan()


class _Lowering:
    """Collects ops and declares each buffer as it is first written."""

    def __init__(
        self,
        spec: ModelSpec,
        dtype: DType,
        max_positions: int,
        quantization: Quantization,
        kv_dtype: KvDType,
        taps: Sequence[int],
    ) -> None:
        if not spec.layers:
            raise ModelError("the model has no layers; num_hidden_layers must be at least 1")
        for layer in taps:
            if not 0 <= layer < len(spec.layers):
                raise ModelError(
                    f"hidden states are wanted at the input of layer {layer}, and the model has "
                    f"layers 0 to {len(spec.layers) - 1}"
                )
        self._spec = spec
        self._dtype = dtype
        self._max_positions = max_positions
        self._quantization = quantization
        self._kv_dtype: KvDType = kv_dtype
        self._taps = tuple(taps)
        # Matrix products read what the hardware multiplies: bfloat16 for bfloat16 weights.
        self._activation: Element = "bfloat16" if dtype == "bfloat16" else "float32"
        self._ops: list[Op] = []
        self._buffers: dict[BufferName, Buffer] = {}
        self._ropes: list[RopeSpec] = []

    def plan(self) -> Plan:
        spec = self._spec
        self._ops.append(Embed("embed", self._new(RESIDUAL, spec.hidden_size)))
        if self._taps:
            self._new(TAPS, len(self._taps) * spec.hidden_size, rows=Rows.SELECTED)
        for index, layer in enumerate(spec.layers):
            self._attention(index, layer)
            self._mlp(index, layer)
        logits, argmax, hidden = self._head()
        return Plan(
            spec=spec,
            weight_dtype=self._dtype,
            kv_dtype=self._kv_dtype,
            ops=tuple(self._ops),
            buffers=self._buffers,
            ropes=tuple(self._ropes),
            kv_layers=tuple(
                KvLayer(layer.attention.num_kv_heads, layer.attention.head_dim)
                for layer in spec.layers
            ),
            logits=logits,
            argmax=argmax,
            hidden=hidden,
            max_positions=self._max_positions,
            taps=TAPS if self._taps else None,
        )

    def _new(
        self,
        name: BufferName,
        cols: int,
        element: Element = "float32",
        rows: Rows = Rows.TOKENS,
    ) -> BufferName:
        self._buffers[name] = Buffer(name, rows, cols, element)
        return name

    def _norm(self, at: str, weight: str) -> BufferName:
        out = self._new(at, self._spec.hidden_size, self._activation)
        self._ops.append(RmsNorm(RESIDUAL, out, weight, self._spec.norm_eps))
        return out

    def _linear(self, x: BufferName, at: str, n: int, bias: bool) -> BufferName:
        """A product of x with weight ``at``, into a float32 buffer of the same name."""
        out = self._new(at, n)
        part = LinearPart(at, n, f"{at}.bias" if bias else None)
        self._ops.append(self._product(x, out, part, self._quantization.linear))
        return out

    def _product(
        self, x: BufferName, out: BufferName, part: LinearPart, scheme: QuantScheme | None
    ) -> Linear:
        weight_only = scheme is not None and not self._quantization.activations
        k = self._buffers[x].cols
        return Linear(x, out, k, (part,), scheme=scheme, weight_only=weight_only)

    def _rope_index(self, rope: RopeSpec) -> int:
        if rope not in self._ropes:
            self._ropes.append(rope)
        return self._ropes.index(rope)

    def _attention(self, index: int, layer: LayerSpec) -> None:
        a, at = layer.attention, f"layers.{index}."
        q_size, kv_size = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        h = self._norm(at + "h", at + "attn_norm")
        # Behind the norm: fusion adds the layer before's output to the residual in it.
        for i, tapped in enumerate(self._taps):
            if tapped == index:
                self._ops.append(SelectRows(RESIDUAL, TAPS, i * self._spec.hidden_size))
        q = self._linear(h, at + "q", q_size, a.qkv_bias)
        k = self._linear(h, at + "k", kv_size, a.qkv_bias)
        v = self._linear(h, at + "v", kv_size, a.qkv_bias)
        if a.qk_norm:
            for x, name in ((q, "q_norm"), (k, "k_norm")):
                self._ops.append(HeadNorm(x, x, a.head_dim, at + name, self._spec.norm_eps))
        rope = self._rope_index(a.rope)
        rotated_q = self._new(at + "rotated_q", q_size, self._activation)
        rotated_k = self._new(at + "rotated_k", kv_size)
        self._ops.append(Rope(q, rotated_q, a.head_dim, rope))
        self._ops.append(Rope(k, rotated_k, a.head_dim, rope))
        self._ops.append(KvWrite(index, rotated_k, v, a.num_kv_heads, a.head_dim))
        attended = self._new(at + "attended", q_size, self._activation)
        self._ops.append(
            Attention(
                layer=index,
                q=rotated_q,
                out=attended,
                heads=a.num_heads,
                kv_heads=a.num_kv_heads,
                head_dim=a.head_dim,
                scale=a.scale,
                window=a.window,
            )
        )
        delta = self._linear(attended, at + "o", self._spec.hidden_size, a.output_bias)
        self._ops.append(Add(RESIDUAL, delta, RESIDUAL))

    def _mlp(self, index: int, layer: LayerSpec) -> None:
        m, at = layer.mlp, f"layers.{index}."
        h = self._norm(at + "g", at + "mlp_norm")
        gate = self._linear(h, at + "gate", m.intermediate_size, m.bias)
        up = self._linear(h, at + "up", m.intermediate_size, m.bias)
        inner = self._new(at + "inner", m.intermediate_size, self._activation)
        self._ops.append(Gate(gate, up, inner, m.activation))
        delta = self._linear(inner, at + "down", self._spec.hidden_size, m.bias)
        self._ops.append(Add(RESIDUAL, delta, RESIDUAL))

    def _head(self) -> tuple[BufferName, BufferName, BufferName]:
        spec = self._spec
        last = self._new("last", spec.hidden_size, rows=Rows.SELECTED)
        normed = self._new("last_normed", spec.hidden_size, self._activation, Rows.SELECTED)
        logits = self._new("logits", spec.vocab_size, rows=Rows.LOGITS)
        argmax = self._new("argmax", 1, "int32", Rows.LOGITS)
        weight = "embed" if spec.tie_embeddings else "head"
        self._ops += [
            SelectRows(RESIDUAL, last),
            RmsNorm(last, normed, "final_norm", spec.norm_eps),
            self._product(
                normed, logits, LinearPart(weight, spec.vocab_size), self._quantization.head
            ),
            Argmax(logits, argmax),
        ]
        return logits, argmax, normed
