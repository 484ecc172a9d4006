"""What lowerings of all kinds of models share: ops collected one by one, and transformer layers."""

from __future__ import annotations

from penstock.cache.geometry import KvDType
from penstock.interface.sources import PlanWeight, Shape
from penstock.models.names import own_names
from penstock.models.spec import DType, LayerSpec, ModelSpec, RopeSpec
from penstock.plan.kv_groups import kv_layers
from penstock.plan.ops import (
    Add,
    Argmax,
    Attention,
    Buffer,
    BufferName,
    Element,
    Embed,
    Features,
    Gate,
    HeadNorm,
    Join,
    KvWrite,
    Linear,
    LinearPart,
    Op,
    RmsNorm,
    Rope,
    Rows,
    WeightName,
)
from penstock.plan.plan import Plan
from penstock.quant.scheme import Quantization

RESIDUAL = "x"


class Lowering:
    """Collects ops and declares each buffer as it is first written."""

    def __init__(
        self,
        spec: ModelSpec,
        dtype: DType,
        max_positions: int,
        quantization: Quantization,
        kv_dtype: KvDType,
        half: bool = False,
    ) -> None:
        self._spec = spec
        self._dtype = dtype
        self._max_positions = max_positions
        self._quantization = quantization
        self._kv_dtype: KvDType = kv_dtype
        # Matrix products read what the hardware multiplies: bfloat16 for bfloat16 weights, and
        # float16 for float16 ones where it can. The residual stream, whose values grow past what
        # float16 holds, is float32 in any case.
        self._activation: Element = "float32"
        if dtype == "bfloat16" or (dtype == "float16" and half):
            self._activation = dtype
        self._ops: list[Op] = []
        self._buffers: dict[BufferName, Buffer] = {}
        self._shapes: dict[WeightName, Shape] = {}
        self._packed: set[WeightName] = set()
        self._ropes: list[RopeSpec] = []

    def _new(
        self,
        name: BufferName,
        cols: int,
        element: Element = "float32",
        rows: Rows = Rows.TOKENS,
    ) -> BufferName:
        self._buffers[name] = Buffer(name, rows, cols, element)
        return name

    def _weight(self, name: WeightName, *shape: int) -> WeightName:
        """Declare a weight that the next op reads; one may be read by several, in one shape."""
        declared = self._shapes.setdefault(name, shape)
        assert declared == shape, f"{name} is {declared} and {shape}"
        return name

    def _declared(self) -> dict[WeightName, PlanWeight]:
        """All weights, with the sources that the model's names give them."""
        names, shapes, form = self._spec.names, self._shapes, self._spec.quantized
        sources = own_names(shapes)
        if names is not None:
            for name in shapes:
                its = form if name in self._packed else None
                sources[name] = names.source(name, shapes, its)
        weights = {name: PlanWeight(source) for name, source in sources.items()}
        assert all(weight.shape == shapes[name] for name, weight in weights.items())
        return weights

    def _norm(self, at: str, weight: str, x: BufferName = RESIDUAL) -> BufferName:
        """The norm of x, for a product to read."""
        source = self._buffers[x]
        out = self._new(at, source.cols, self._activation, source.rows)
        self._weight(weight, source.cols)
        self._ops.append(RmsNorm(x, out, weight, self._spec.norm_eps))
        return out

    def _readable(self, x: BufferName) -> BufferName:
        """x as products read it: rounded where they multiply bfloat16."""
        source = self._buffers[x]
        if source.element == self._activation:
            return x
        out = self._new(f"{x}.rounded", source.cols, self._activation, source.rows)
        self._ops.append(Join((x,), out))
        return out

    def _linear(self, x: BufferName, at: str, n: int, bias: bool) -> BufferName:
        """A product of x with weight ``at``, into a float32 buffer of the same name."""
        out = self._new(at, n, rows=self._buffers[x].rows)
        part = LinearPart(at, n, f"{at}.bias" if bias else None)
        self._ops.append(self._product(x, out, part))
        return out

    def _product(self, x: BufferName, out: BufferName, part: LinearPart) -> Linear:
        scheme = self._quantization.of(part.weight)
        stored = self._spec.quantized
        if stored is not None and stored.stores(part.weight):
            scheme = stored.scheme
            self._packed.add(part.weight)
        weight_only = scheme is not None and not self._quantization.activations
        k = self._buffers[x].cols
        self._weight(part.weight, part.n, k)
        if part.bias is not None:
            self._weight(part.bias, part.n)
        return Linear(x, out, k, (part,), scheme=scheme, weight_only=weight_only)

    def _rope_index(self, rope: RopeSpec) -> int:
        if rope not in self._ropes:
            self._ropes.append(rope)
        return self._ropes.index(rope)

    def _attention(self, index: int, layer: LayerSpec, h: BufferName) -> None:
        """Attention over what is in ``h``, added to the residual stream."""
        a, at = layer.attention, f"layers.{index}."
        q_size, kv_size = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        q = self._linear(h, at + "q", q_size, a.qkv_bias)
        k = self._linear(h, at + "k", kv_size, a.qkv_bias)
        v = self._linear(h, at + "v", kv_size, a.qkv_bias)
        if a.qk_norm:
            for x, name in ((q, "q_norm"), (k, "k_norm")):
                weight = self._weight(at + name, a.head_dim)
                self._ops.append(HeadNorm(x, x, a.head_dim, weight, self._spec.norm_eps))
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

    def _embed(self, out: BufferName) -> None:
        spec = self._spec
        weight = self._weight("embed", spec.vocab_size, spec.hidden_size)
        self._ops.append(Embed(weight, self._new(out, spec.hidden_size)))

    def _features(self, at: str, first: int, columns: int) -> BufferName:
        """These columns of the step's features."""
        out = self._new(at, columns)
        self._ops.append(Features(out, first, columns))
        return out

    def _logits(self, x: BufferName, weight: str, outputs: int, at: str = "logits") -> BufferName:
        """The output matrix of the first rows of x, which are selected ones."""
        logits = self._new(at, outputs, rows=Rows.LOGITS)
        part = LinearPart(weight, outputs)
        self._ops.append(self._product(x, logits, part))
        return logits

    def _argmax(self, logits: BufferName) -> BufferName:
        argmax = self._new("argmax", 1, "int32", Rows.LOGITS)
        self._ops.append(Argmax(logits, argmax))
        return argmax

    def _finish(
        self,
        logits: BufferName,
        argmax: BufferName,
        hidden: BufferName,
        taps: BufferName | None = None,
        more_logits: tuple[BufferName, ...] = (),
    ) -> Plan:
        """All that was collected, with these results."""
        spec = self._spec
        return Plan(
            spec=spec,
            weight_dtype=self._dtype,
            kv_dtype=self._kv_dtype,
            ops=tuple(self._ops),
            weights=self._declared(),
            buffers=self._buffers,
            ropes=tuple(self._ropes),
            kv_layers=kv_layers(spec),
            logits=logits,
            argmax=argmax,
            hidden=hidden,
            max_positions=self._max_positions,
            taps=taps,
            more_logits=more_logits,
        )
