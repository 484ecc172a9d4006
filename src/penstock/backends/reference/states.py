"""The state slots of the reference backend, and the ops that read and write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.backends.reference.convolution import weighted
from penstock.backends.reference.numerics import sigmoid
from penstock.backends.reference.products import F32
from penstock.backends.reference.row_ops import Values
from penstock.interface.executor import Limits
from penstock.interface.state_check import check_states
from penstock.interface.step import StepInput
from penstock.models.spec import DType
from penstock.plan import ops
from penstock.plan.plan import Plan
from penstock.plan.state_layers import StateLayer

_DTYPES: Final[dict[DType, Any]] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
}

Update: TypeAlias = "Callable[[F32, F32], None]"
"""Carries out a row of the log on a state ``[heads, rows, columns]``, in place."""


class LayerStates:
    """What one layer keeps in all slots; ``penstock.plan.ops.state`` says what it is."""

    def __init__(self, layer: StateLayer, dtype: DType, num_slots: int, log: int) -> None:
        shape = (num_slots, layer.heads, layer.rows, layer.columns)
        self.state: F32 = np.zeros(shape, np.float32)
        ring = (num_slots, layer.ring_rows(log), layer.channels)
        self.conv: NDArray[Any] = np.zeros(ring, _DTYPES[dtype])
        self.log: F32 = np.zeros((num_slots, log, layer.log_size), np.float32)

    def copy(self, source: int, target: int) -> None:
        for array in (self.state, self.conv, self.log):
            array[target] = array[source]


@dataclass(frozen=True)
class _Line:
    """The rows of one sequence in a step."""

    rows: slice
    first: int
    """The position of the first row."""
    slot: int
    seen: int
    stored: int
    """Tokens that the stored state has seen behind the step."""
    snapshots: dict[int, int]
    """Slots by the tokens that are seen there."""


class States:
    """The state slots of a plan, and the ops over them."""

    def __init__(self, plan: Plan, limits: Limits, values: Values) -> None:
        self._num_slots, self._log = limits.num_states, limits.state_log
        self._values = values
        self._layers = [
            LayerStates(layer, plan.state_dtype, limits.num_states, limits.state_log)
            for layer in plan.state_layers
        ]
        if plan.state_layers and not limits.num_states:
            raise ValueError("layers of the plan keep states, and the limits have no slots")
        self.ops: dict[type[ops.Op], Callable[[Any, StepInput], None]] = {
            ops.StateConv: self._convolve,
            ops.GatedDelta: self._gated_delta,
            ops.SelectiveScan: self._selective_scan,
        }

    def begin(self, step: StepInput) -> None:
        """Check the step's tables and copy slots, before any op; raises ValueError."""
        check_states(step, self._num_slots if self._layers else 0, self._log)
        if step.states is not None:
            for source, target in step.states.copies.tolist():
                for layer in self._layers:
                    layer.copy(source, target)

    def _convolve(self, op: ops.StateConv, step: StepInput) -> None:
        layer, v = self._layers[op.layer], self._values
        x = v.buffers[op.x].astype(layer.conv.dtype)
        weight, bias = v.weights[op.weight], v.optional(op.bias)
        before, size = op.kernel - 1, layer.conv.shape[1]
        out = np.empty(x.shape, np.float32)
        for line in _lines(step):
            ring = layer.conv[line.slot]
            past = np.zeros((before, x.shape[1]), x.dtype)
            known = min(before, line.first)
            at = np.arange(line.first - known, line.first) % size
            past[before - known :] = ring[at]
            u = np.concatenate([past, x[line.rows]])  # row i is of position first - before + i
            wide, count = u.astype(np.float32), len(u) - before
            y = weighted([wide[j : j + count] for j in range(op.kernel)], weight, bias)
            out[line.rows] = y * sigmoid(y) if op.silu else y
            for tokens, slot in line.snapshots.items():
                end = tokens - (line.first - before)  # in u
                kept = np.arange(max(tokens - before, 0), tokens)
                if end >= before:
                    layer.conv[slot][kept % size] = u[end - len(kept) : end]
                else:  # a replayed position: some of its rows lie before u
                    layer.conv[slot][kept % size] = ring[kept % size]
            last = np.arange(line.first + count - min(size, count), line.first + count)
            ring[last % size] = u[len(u) - len(last) :]
        v.put(op.out, out)

    def _gated_delta(self, op: ops.GatedDelta, step: StepInput) -> None:
        v = self._values
        keys, size = op.key_heads * op.key_dim, op.value_heads * op.value_dim
        x, ba = v.buffers[op.qkv], v.buffers[op.ba]
        q = _unit(x[:, :keys].reshape(len(x), op.key_heads, op.key_dim))
        q *= np.float32(op.key_dim**-0.5)
        k = _unit(x[:, keys : 2 * keys].reshape(q.shape))
        beta = sigmoid(ba[:, : op.value_heads])
        rate = np.exp(v.weights[op.a_log])
        decay = np.exp(-rate * softplus(ba[:, op.value_heads :] + v.weights[op.dt_bias]))
        rows = np.concatenate([k.reshape(len(x), -1), x[:, 2 * keys :], decay, beta], axis=1)
        heads = np.arange(op.value_heads)
        of_key = heads % op.key_heads if op.tiled else heads * op.key_heads // op.value_heads

        def update(state: F32, row: F32) -> None:
            key, value, fade, share = np.split(row, [keys, keys + size, keys + size + len(rate)])
            key = key.reshape(op.key_heads, op.key_dim)[of_key][..., None]
            fade = fade[:, None]
            known = fade * (key * state).sum(axis=1)
            change = share[:, None] * (value.reshape(op.value_heads, -1) - known)
            state *= fade[..., None]
            state += key * change[:, None, :]

        def read(state: F32, t: int) -> F32:
            query = q[t][of_key][..., None]
            return np.asarray((query * state).sum(axis=1), np.float32).reshape(-1)

        v.put(op.out, self._scanned(op.layer, step, rows.astype(np.float32), update, read, size))

    def _selective_scan(self, op: ops.SelectiveScan, step: StepInput) -> None:
        v = self._values
        inner, size = op.heads * op.head_dim, op.groups * op.state
        xbc, shared = v.buffers[op.xbc], op.heads // op.groups
        x = xbc[:, :inner].reshape(len(xbc), op.heads, op.head_dim)
        low, high = op.dt_limits
        dt = np.clip(softplus(v.buffers[op.dt] + v.weights[op.dt_bias]), low, high)
        decay = np.exp(-np.exp(v.weights[op.a_log]) * dt)
        u = (dt[..., None] * x).reshape(len(xbc), inner)
        rows = np.concatenate([xbc[:, inner : inner + size], u, decay], axis=1)
        c = xbc[:, inner + size :].reshape(len(xbc), op.groups, op.state)
        skip = v.weights[op.d][:, None]

        def update(state: F32, row: F32) -> None:
            b, moved, fade = np.split(row, [size, size + inner])
            b = np.repeat(b.reshape(op.groups, op.state), shared, axis=0)[..., None]
            state *= fade[:, None, None]
            state += b * moved.reshape(op.heads, 1, op.head_dim)

        def read(state: F32, t: int) -> F32:
            mixed = (np.repeat(c[t], shared, axis=0)[..., None] * state).sum(axis=1)
            return np.asarray(skip * x[t] + mixed, np.float32).reshape(-1)

        v.put(op.out, self._scanned(op.layer, step, rows.astype(np.float32), update, read, inner))

    def _scanned(
        self,
        index: int,
        step: StepInput,
        rows: F32,
        update: Update,
        read: Callable[[F32, int], F32],
        columns: int,
    ) -> F32:
        """What is read, ``[T, columns]``, of each sequence's state, token after token.

        ``rows`` has the log row of each of the step's tokens; ``read`` is given the state behind a
        token, and its row in the step.
        """
        layer, out = self._layers[index], np.empty((len(rows), columns), np.float32)
        for line in _lines(step):
            stored = layer.state[line.slot]
            state = stored.copy() if line.seen else np.zeros_like(stored)
            if line.seen == line.stored:  # no token of the step will stay for sure
                stored[:] = state
            for position in range(line.seen, line.first + line.rows.stop - line.rows.start):
                t = line.rows.start + position - line.first
                if position < line.first:
                    update(state, layer.log[line.slot, position % self._log])
                else:
                    update(state, rows[t])
                    out[t] = read(state, t)
                if position >= line.stored:
                    layer.log[line.slot, position % self._log] = rows[t]
                if position + 1 == line.stored:
                    stored[:] = state
                if position + 1 in line.snapshots:
                    layer.state[line.snapshots[position + 1]] = state
        return out


def softplus(x: F32) -> F32:
    """``log(1 + exp(x))``, and x itself above 20."""
    with np.errstate(over="ignore"):
        soft = np.log1p(np.exp(x))
    return np.where(x > 20, x, soft).astype(np.float32)


def _unit(x: F32) -> F32:
    """Heads divided by their lengths: ``x * rsqrt(sum(x**2) + 1e-6)``."""
    lengths = np.sum(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    return (x / np.sqrt(lengths + np.float32(1e-6))).astype(np.float32)


def _lines(step: StepInput) -> Iterator[_Line]:
    states = step.states
    assert states is not None
    snapshots: dict[int, dict[int, int]] = {}
    for s, tokens, slot in states.snapshots.tolist():
        snapshots.setdefault(s, {})[tokens] = slot
    for s in range(step.num_sequences):
        first, end = int(step.query_starts[s]), int(step.query_starts[s + 1])
        context = int(step.context_lens[s])
        yield _Line(
            rows=slice(first, end),
            first=context - (end - first),
            slot=int(states.slots[s]),
            seen=int(states.seen[s]),
            stored=context - int(states.tentative[s]),
            snapshots=snapshots.get(s, {}),
        )
