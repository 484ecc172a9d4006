"""Builds a plan: collects ops, and each buffer and weight when an op first names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.cache.geometry import KvDType
from penstock.errors import ConfigError, ModelError
from penstock.interface.sources import Stored
from penstock.models.spec import DType, ModelSpec, NormSpec, PositionTable, RopeSpec
from penstock.plan.kv_groups import kv_layers
from penstock.plan.lower.declared_weights import DeclaredWeights
from penstock.plan.ops import (
    Add,
    AddPositions,
    Argmax,
    Buffer,
    BufferName,
    Element,
    Embed,
    Features,
    HeadLinear,
    Join,
    LayerNorm,
    Linear,
    LinearPart,
    Op,
    RmsNorm,
    Rows,
    Scale,
    SelectRows,
    WeightName,
)
from penstock.plan.plan import Plan
from penstock.plan.state_layers import state_layers
from penstock.quant.scheme import Quantization, QuantScheme

RESIDUAL = "x"


class PlanBuilder:
    """Collects the ops of one plan; parts of models are lowered by functions that are given it.

    Matrix products read what the hardware multiplies, ``activation``: bfloat16 for bfloat16
    weights, and float16 for float16 ones where it can (``half``). The residual stream, whose values
    grow past what float16 holds, is float32 in any case, as are all results of products that no
    product reads.
    """

    def __init__(
        self,
        spec: ModelSpec,
        dtype: DType,
        max_positions: int,
        quantization: Quantization,
        kv_dtype: KvDType,
        half: bool = False,
        taken_back: int | None = None,
    ) -> None:
        self.dtype = dtype
        self.weights = DeclaredWeights(spec, quantization)
        self.activation: Element = "float32"
        if dtype == "bfloat16" or (dtype == "float16" and half):
            self.activation = dtype
        self._spec = spec
        self._max_positions = max_positions
        self._kv_dtype: KvDType = kv_dtype
        self._taken_back = taken_back
        self._ops: list[Op] = []
        self._buffers: dict[BufferName, Buffer] = {}
        self._ropes: list[RopeSpec] = []

    @property
    def hidden_size(self) -> int:
        return self._spec.hidden_size

    def append(self, *ops: Op) -> None:
        self._ops += ops

    def new(
        self,
        name: BufferName,
        cols: int,
        element: Element = "float32",
        rows: Rows = Rows.TOKENS,
    ) -> BufferName:
        """Declare a buffer."""
        self._buffers[name] = Buffer(name, rows, cols, element)
        return name

    def buffer(self, name: BufferName) -> Buffer:
        return self._buffers[name]

    def weight(self, name: WeightName, *shape: int, wide: bool = False) -> WeightName:
        """Declare a weight that the next op reads; one may be read by several, in one shape.

        ``wide``: it is in float32, whatever type the model is served in.
        """
        self.weights.declare(name, shape, wide)
        return name

    def norm(
        self,
        out: BufferName,
        name: WeightName,
        norm: NormSpec,
        x: BufferName = RESIDUAL,
        element: Element | None = None,
    ) -> BufferName:
        """The norm of x, by default for a product to read, by the weight ``name`` if by any."""
        source = self._buffers[x]
        self.new(out, source.cols, element or self.activation, source.rows)
        weight = self.weight(name, source.cols) if norm.weight else None
        if norm.kind == "rms":
            self.append(RmsNorm(x, out, weight, norm.eps))
        else:
            bias = self.weight(f"{name}.bias", source.cols) if norm.bias else None
            self.append(LayerNorm(x, out, weight, bias, norm.eps))
        return out

    def norm_or_read(
        self,
        out: BufferName,
        weight: WeightName,
        norm: NormSpec | None,
        x: BufferName = RESIDUAL,
    ) -> BufferName:
        """What a product reads of x: its norm if there is one, else x itself."""
        return self.readable(x, out) if norm is None else self.norm(out, weight, norm, x)

    def readable(self, x: BufferName, at: BufferName | None = None) -> BufferName:
        """x as products read it: rounded, into ``at``, where they do not read float32."""
        source = self._buffers[x]
        if source.element == self.activation:
            return x
        out = self.new(at or f"{x}.rounded", source.cols, self.activation, source.rows)
        self.append(Join((x,), out))
        return out

    def linear(
        self, x: BufferName, at: str, n: int, bias: bool, element: Element = "float32"
    ) -> BufferName:
        """A product of x with weight ``at``, into a buffer of the same name."""
        out = self.new(at, n, element, self._buffers[x].rows)
        part = LinearPart(at, n, f"{at}.bias" if bias else None)
        self.append(self.product(x, out, part))
        return out

    def joined(
        self, x: BufferName, out: BufferName, parts: Sequence[LinearPart], exact: bool = False
    ) -> BufferName:
        """Products of x with several matrices, side by side in out, each as :meth:`product`."""
        names = [part.weight for part in parts]
        stored = self.weights.as_stored(names, self._buffers[x].cols)
        each = [self.product(x, out, part, exact, stored) for part in parts]
        require_alike({part.weight: one.scheme for part, one in zip(parts, each, strict=True)})
        self.new(out, sum(part.n for part in parts), rows=self._buffers[x].rows)
        self.append(replace(each[0], parts=tuple(parts)))
        return out

    def product(
        self,
        x: BufferName,
        out: BufferName,
        part: LinearPart,
        exact: bool = False,
        stored: bool = True,
    ) -> Linear:
        """A product with the matrix and bias of ``part``, which is never quantized if ``exact``,
        unless the checkpoint has it so and it is read as ``stored``."""
        k = self._buffers[x].cols
        scheme, weight_only = self.weights.rounding(part.weight, k, exact, stored)
        self.weight(part.weight, part.n, k)
        if part.bias is not None:
            self.weight(part.bias, part.n)
        return Linear(x, out, k, (part,), scheme=scheme, weight_only=weight_only)

    def head_linear(
        self, x: BufferName, at: str, heads: int, n: int, transposed: bool = False
    ) -> BufferName:
        """A product of each head of x with its matrix in weight ``at``, for products to read. One
        that the checkpoint has quantized is read as floats."""
        self.weights.read_as_floats(at)
        k = self._buffers[x].cols // heads
        shape = (heads * k, n) if transposed else (heads * n, k)
        out = self.new(f"{at}.out", heads * n, self.activation, self._buffers[x].rows)
        self.append(HeadLinear(x, out, self.weight(at, *shape), heads, k, n, transposed))
        return out

    def add(self, delta: BufferName, scale: float = 1.0) -> None:
        """Add ``scale * delta`` to the residual stream."""
        if scale != 1.0:
            self.append(Scale(delta, delta, scale))
        self.append(Add(RESIDUAL, delta, RESIDUAL))

    def rope_index(self, rope: RopeSpec) -> int:
        """The place in ``Plan.ropes`` of a layer's rotation, for contexts of the plan's length."""
        rope = rope.for_context(self._max_positions)
        if rope not in self._ropes:
            self._ropes.append(rope)
        return self._ropes.index(rope)

    def cache_index(self, layer: int) -> int:
        """The place in ``Plan.kv_layers`` of a layer that caches rows of its own."""
        return len(kv_layers(self._spec.layers[:layer]))

    def state_index(self, layer: int) -> int:
        """The place in ``Plan.state_layers`` of a layer that keeps a state."""
        return len(state_layers(self._spec.layers[:layer]))

    def embed(self, out: BufferName) -> None:
        self.look_up(out, "embed", self._spec.vocab_size, self._spec.hidden_size)

    def look_up(self, out: BufferName, table: WeightName, rows: int, cols: int) -> None:
        """Each token's row of a table, in float32; a table in blocks or groups stays in them."""
        scheme = self.weights.table_scheme(table, cols)
        self.append(Embed(self.weight(table, rows, cols), self.new(out, cols), scheme))

    def add_positions(self, x: BufferName, table: PositionTable) -> None:
        """Add to x the embeddings of positions."""
        if table.offset + self._max_positions > table.rows:
            raise ConfigError(
                f"the model has embeddings of {table.rows - table.offset} positions, and contexts "
                f"of {self._max_positions} tokens are asked for; lower max_model_len"
            )
        weight = self.weight("positions", table.rows, self._buffers[x].cols)
        self.append(AddPositions(x, x, weight, table.offset))

    def features(self, at: str, first: int, columns: int) -> BufferName:
        """These columns of the step's features."""
        out = self.new(at, columns)
        self.append(Features(out, first, columns))
        return out

    def join(self, at: str, *xs: BufferName) -> BufferName:
        """The columns of xs side by side, for a product to read."""
        columns = sum(self._buffers[x].cols for x in xs)
        out = self.new(at, columns, self.activation)
        self.append(Join(xs, out))
        return out

    def select(self, x: BufferName, at: str) -> BufferName:
        """The selected rows of x."""
        source = self._buffers[x]
        out = self.new(at, source.cols, source.element, Rows.SELECTED)
        self.append(SelectRows(x, out))
        return out

    def logits(
        self,
        x: BufferName,
        weight: WeightName,
        outputs: int,
        at: BufferName = "logits",
        bias: WeightName | None = None,
    ) -> BufferName:
        """The output matrix of the first rows of x, which are selected ones."""
        logits = self.new(at, outputs, rows=Rows.LOGITS)
        part = LinearPart(weight, outputs, bias)
        self.append(self.product(x, logits, part))
        return logits

    def argmax(self, logits: BufferName) -> BufferName:
        argmax = self.new("argmax", 1, "int32", self._buffers[logits].rows)
        self.append(Argmax(logits, argmax))
        return argmax

    def finish(
        self,
        logits: BufferName,
        argmax: BufferName,
        hidden: BufferName,
        taps: BufferName | None = None,
        more_logits: tuple[BufferName, ...] = (),
        token_offsets: Stored | None = None,
    ) -> Plan:
        """All that was collected, with these results."""
        return Plan(
            spec=self._spec,
            weight_dtype=self.dtype,
            kv_dtype=self._kv_dtype,
            ops=tuple(self._ops),
            weights=self.weights.all(),
            buffers=self._buffers,
            ropes=tuple(self._ropes),
            kv_layers=kv_layers(self._spec.layers, self._taken_back),
            state_layers=state_layers(self._spec.layers),
            logits=logits,
            argmax=argmax,
            hidden=hidden,
            max_positions=self._max_positions,
            taps=taps,
            more_logits=more_logits,
            token_offsets=token_offsets,
        )


def require_alike(schemes: Mapping[WeightName, QuantScheme | None]) -> None:
    """Raise ModelError unless matrices that one op reads all have the same scheme."""
    (name, scheme), *others = schemes.items()
    for other, its in others:
        if its != scheme:
            raise ModelError(
                f"the checkpoint has {name} in {scheme or 'floats'} and {other} in "
                f"{its or 'floats'}, which are multiplied together and must be stored alike; "
                "quantize them alike, or take the unquantized checkpoint"
            )
