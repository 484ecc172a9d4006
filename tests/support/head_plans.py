"""Plans of heads that draft, put together op by op, and steps for them: for tests of backends.

The three shapes of the published kinds, at sizes no vector divides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import Chunk
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.step import StepInput
from penstock.models.names import own_names
from penstock.models.spec import DType, LayerSpec, MlpSpec, ModelSpec
from penstock.plan.kv_groups import KvLayer
from penstock.plan.ops import (
    Activate,
    Add,
    Argmax,
    Attention,
    Buffer,
    BufferName,
    Element,
    Embed,
    Features,
    Gate,
    Join,
    KvWrite,
    Linear,
    LinearPart,
    Op,
    RmsNorm,
    Rope,
    Rows,
    SelectRows,
)
from penstock.plan.plan import Plan
from support.tiny_plans import make_spec

HIDDEN = 72
DRAFTS = 50
"""Tokens that the head of the third kind can tell; the vocabulary has 211."""


class Writer:
    """Collects ops, buffers and the shapes of weights."""

    def __init__(self, dtype: DType) -> None:
        self.dtype: DType = dtype
        self.activation: Element = "bfloat16" if dtype == "bfloat16" else "float32"
        self.ops: list[Op] = []
        self.buffers: dict[BufferName, Buffer] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def buffer(
        self,
        name: BufferName,
        cols: int,
        element: Element = "float32",
        rows: Rows = Rows.TOKENS,
    ) -> BufferName:
        self.buffers[name] = Buffer(name, rows, cols, element)
        return name

    def features(self, name: BufferName, first: int, cols: int) -> BufferName:
        self.ops.append(Features(self.buffer(name, cols), first, cols))
        return name

    def embed(self, name: BufferName) -> BufferName:
        self.shapes["embed"] = (211, HIDDEN)
        self.ops.append(Embed("embed", self.buffer(name, HIDDEN)))
        return name

    def join(self, name: BufferName, *xs: BufferName) -> BufferName:
        cols = sum(self.buffers[x].cols for x in xs)
        rows = self.buffers[xs[0]].rows
        self.ops.append(Join(xs, self.buffer(name, cols, self.activation, rows)))
        return name

    def norm(self, x: BufferName, name: BufferName) -> BufferName:
        self.shapes[f"{name}_norm"] = (self.buffers[x].cols,)
        out = self.buffer(name, self.buffers[x].cols, self.activation, self.buffers[x].rows)
        self.ops.append(RmsNorm(x, out, f"{name}_norm", 1e-5))
        return out

    def linear(
        self, x: BufferName, name: BufferName, n: int, bias: bool = False, logits: bool = False
    ) -> BufferName:
        k, rows = self.buffers[x].cols, Rows.LOGITS if logits else self.buffers[x].rows
        weight = name.rpartition(".")[2]
        self.shapes[weight] = (n, k)
        if bias:
            self.shapes[f"{weight}.bias"] = (n,)
        part = LinearPart(weight, n, f"{weight}.bias" if bias else None)
        self.ops.append(Linear(x, self.buffer(name, n, rows=rows), k, (part,)))
        return name

    def layer(self, h: BufferName, x: BufferName, layer: LayerSpec) -> None:
        """Attention that reads ``h``, and the MLP, on the residual stream ``x``."""
        a, m = layer.attention, layer.mlp
        assert isinstance(m, MlpSpec)
        q, k, v = (
            self.linear(h, f"layers.0.{name}", heads * a.head_dim, a.has_bias(name))
            for name, heads in (("q", a.num_heads), ("k", a.num_kv_heads), ("v", a.num_kv_heads))
        )
        size = a.num_heads * a.head_dim
        assert not isinstance(a.window, Chunk)
        rotated_q = self.buffer("rotated_q", size, self.activation)
        rotated_k = self.buffer("rotated_k", a.num_kv_heads * a.head_dim)
        attended = self.buffer("attended", size, self.activation)
        self.ops += [
            Rope(q, rotated_q, a.head_dim, 0),
            Rope(k, rotated_k, a.head_dim, 0),
            KvWrite(0, rotated_k, v, a.num_kv_heads, a.head_dim),
            Attention(
                0,
                rotated_q,
                attended,
                a.num_heads,
                a.num_kv_heads,
                a.head_dim,
                a.scale,
                a.window,
            ),
        ]
        self.ops.append(Add(x, self.linear(attended, "o", HIDDEN), x))
        assert m is not None
        assert m.activation != "xielu"
        g = self.norm(x, "mlp")
        gate, up = (self.linear(g, name, m.intermediate_size) for name in ("gate", "up"))
        inner = self.buffer("inner", m.intermediate_size, self.activation)
        self.ops.append(Gate(gate, up, inner, m.activation))
        self.ops.append(Add(x, self.linear(inner, "down", HIDDEN), x))

    def select(self, x: BufferName) -> BufferName:
        out = self.buffer("last", self.buffers[x].cols, self.buffers[x].element, Rows.SELECTED)
        self.ops.append(SelectRows(x, out))
        return out

    def plan(
        self, logits: BufferName, hidden: BufferName, *more: BufferName, cached: bool = True
    ) -> Plan:
        self.ops.append(Argmax(logits, self.buffer("argmax", 1, "int32", Rows.LOGITS)))
        base = make_spec()
        attention = base.layers[0].attention
        fields = {name: getattr(base, name) for name in ModelSpec.__dataclass_fields__}
        fields |= {"layers": base.layers[:1] if cached else (), "dtype": self.dtype}
        return Plan(
            spec=ModelSpec(**fields),
            weight_dtype=self.dtype,
            kv_dtype=self.dtype,
            ops=tuple(self.ops),
            weights={name: PlanWeight(source) for name, source in own_names(self.shapes).items()},
            buffers=self.buffers,
            ropes=(attention.rope,) if cached and attention.rope else (),
            kv_layers=(KvLayer(attention.num_kv_heads, attention.head_dim),) if cached else (),
            logits=logits,
            argmax="argmax",
            hidden=hidden,
            max_positions=512,
            more_logits=more,
        )


def medusa(dtype: DType) -> Plan:
    """Three heads of two residual blocks over features alone: no layer, no cache."""
    w = Writer(dtype)
    last = w.select(w.features("given", 0, HIDDEN))
    outs = []
    for head in range(3):
        x = last
        for block in range(2):
            at = f"{head}.{block}"
            y = w.linear(w.join(f"h{at}", x), f"y{at}".replace(".", "_"), HIDDEN, bias=True)
            a = w.buffer(f"a{at}", HIDDEN, rows=Rows.SELECTED)
            w.ops.append(Activate(y, a, "silu"))
            added = w.buffer(f"x{at}", HIDDEN, rows=Rows.SELECTED)
            w.ops.append(Add(x, a, added))
            x = added
        outs.append(w.linear(w.join(f"h{head}", x), f"logits{head}", 211, logits=True))
    return w.plan(outs[0], last, *outs[1:], cached=False)


def eagle(dtype: DType) -> Plan:
    """A layer without its first norm over fc(embedding, feature); told as it is: no last norm."""
    w = Writer(dtype)
    e, f = w.embed("e"), w.features("f", 0, HIDDEN)
    x = w.linear(w.join("ef", e, f), "fc", HIDDEN, bias=True)
    w.layer(w.join("h", x), x, make_spec(bias=True).layers[0])
    last = w.select(x)
    return w.plan(w.linear(w.join("told", last), "head", 211, logits=True), last)


def eagle3(dtype: DType) -> Plan:
    """Features wide and direct; a layer that reads two norms side by side; few drafts to tell."""
    w = Writer(dtype)
    wide, direct = w.features("wide", 0, 3 * HIDDEN), w.features("direct", 3 * HIDDEN, HIDDEN)
    g = w.linear(w.join("fused", wide), "fc", HIDDEN)
    w.ops.append(Add(g, direct, g))
    hidden, tokens = w.norm(g, "hidden"), w.norm(w.embed("e"), "input")
    w.layer(w.join("both", tokens, hidden), g, make_spec().layers[0])
    last = w.select(g)
    return w.plan(w.linear(w.norm(last, "final"), "head", DRAFTS, logits=True), last)


HEADS: dict[str, Callable[[DType], Plan]] = {
    "medusa": medusa,
    "eagle": eagle,
    "eagle3": eagle3,
}


def with_features(step: StepInput, plan: Plan, rows: Sequence[int] | None = None) -> StepInput:
    """The step with features that depend, for each of its tokens, on ``rows`` alone.

    Without ``rows``, on the token and its position.
    """
    if rows is None:
        rows = [
            int(token) * 1000 + int(position)
            for token, position in zip(step.token_ids, step.positions, strict=True)
        ]
    made = [feature_row(seed, plan.feature_size) for seed in rows]
    groups = step.groups[: len(plan.kv_groups)]  # heads without attention have none
    return replace(step, features=np.stack(made), groups=groups)


def feature_row(seed: int, size: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(size, np.float32)
