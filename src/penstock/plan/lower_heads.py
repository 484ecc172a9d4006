"""Lowering of heads that draft (``models/heads.py``)."""

from __future__ import annotations

from penstock.models.heads import EagleSpec, MedusaSpec
from penstock.plan.lowering import RESIDUAL, Lowering
from penstock.plan.ops import (
    Activate,
    Add,
    BufferName,
    Join,
    LinearPart,
    Rows,
    SelectRows,
)
from penstock.plan.plan import Plan


class MedusaLowering(Lowering):
    """Rows are selected first, since every op works row by row."""

    def plan(self, spec: MedusaSpec) -> Plan:
        every = self._features("features", 0, spec.hidden_size)
        x = self._new("x", spec.hidden_size, rows=Rows.SELECTED)
        self._ops.append(SelectRows(every, x))
        read = self._readable(x)
        logits = [self._head(x, read, head, spec) for head in range(spec.num_heads)]
        argmax = self._argmax(logits[0])
        return self._finish(logits[0], argmax, x, more_logits=tuple(logits[1:]))

    def _head(self, x: BufferName, read: BufferName, head: int, spec: MedusaSpec) -> BufferName:
        """One head's logits; ``read`` is x as products read it."""
        for block in range(spec.num_blocks):
            at = f"heads.{head}.blocks.{block}."
            y = self._linear(read, at + "fc", spec.hidden_size, bias=True)
            self._ops.append(Activate(y, y, "silu"))
            out = self._new(at + "x", spec.hidden_size, rows=Rows.SELECTED)
            self._ops.append(Add(x, y, out))
            x, read = out, self._readable(out)
        at = "logits" if head == 0 else f"heads.{head}.logits"
        return self._logits(read, f"heads.{head}.head", spec.vocab_size, at)


class EagleLowering(Lowering):
    """One layer over embeddings and features, and the output matrix."""

    def plan(self, spec: EagleSpec) -> Plan:
        read = self._eagle1(spec) if spec.kind == "eagle1" else self._eagle3(spec)
        (layer,) = spec.layers
        self._attention(0, layer, read)
        self._mlp(0, layer)
        last = self._new("last", spec.hidden_size, rows=Rows.SELECTED)
        self._ops.append(SelectRows(RESIDUAL, last))
        if spec.kind == "eagle1":
            output = self._readable(last)
        else:
            output = self._norm("last_normed", "final_norm", last)
        logits = self._logits(output, "head", spec.num_outputs)
        return self._finish(logits, self._argmax(logits), last)

    def _eagle1(self, spec: EagleSpec) -> BufferName:
        """The residual stream, and what attention reads: the same."""
        hidden = spec.hidden_size
        self._embed(embedded := "embedded")
        features = self._features("features", 0, hidden)
        self._fc(self._join("joined", embedded, features), spec)
        return self._readable(RESIDUAL)

    def _eagle3(self, spec: EagleSpec) -> BufferName:
        """The residual stream, and what attention reads: its norm beside the embedding's."""
        hidden = spec.hidden_size
        self._embed(embedded := "embedded")
        tokens = self._norm("embedded_normed", "layers.0.input_norm", embedded)
        taps = self._features("taps", 0, spec.tapped_size)
        self._fc(self._readable(taps), spec)
        before = self._features("before", spec.tapped_size, hidden)
        self._ops.append(Add(RESIDUAL, before, RESIDUAL))
        features = self._norm("features_normed", "layers.0.feature_norm")
        return self._join("joined", tokens, features)

    def _fc(self, x: BufferName, spec: EagleSpec) -> None:
        bias = "fc.bias" if spec.fc_bias else None
        out = self._new(RESIDUAL, spec.hidden_size)
        part = LinearPart("fc", spec.hidden_size, bias)
        self._ops.append(self._product(x, out, part))

    def _join(self, at: str, *xs: BufferName) -> BufferName:
        columns = sum(self._buffers[x].cols for x in xs)
        out = self._new(at, columns, self._activation)
        self._ops.append(Join(xs, out))
        return out
