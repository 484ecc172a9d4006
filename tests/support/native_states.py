"""A native executor that runs one op over state slots, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.state_slots import StateSlots
from penstock.interface.step import StateTables
from penstock.models.spec import DType
from penstock.plan.state_layers import StateLayer
from support.native_arrays import as_bytes

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Piece:
    """Tokens ``first .. end - 1`` of a sequence in a step, and what becomes of its state."""

    rows: F32
    """The op's inputs of all tokens of the sequence, side by side."""
    first: int
    end: int
    slot: int
    seen: int | None = None
    """None: all tokens before the step."""
    tentative: int = 0
    snapshots: tuple[tuple[int, int], ...] = ()
    """Tokens and slot of each."""

    @property
    def known(self) -> int:
        return self.first if self.seen is None else self.seen


@dataclass(frozen=True)
class Scan:
    """One op over a state: its inputs, its parameters and the state that it has."""

    layer: StateLayer
    inputs: tuple[int, ...]
    """Columns of each."""
    outputs: int
    append: Callable[[Any, list[int], int], None]
    """Appends it to an executor, which reads these buffers and writes that one."""
    wide: Callable[[F32], F64]
    """What the op makes of a sequence's rows, in float64."""
    draw: Callable[[Any, int], F32]
    """Inputs of so many tokens, side by side."""
    weights: tuple[F32, F32 | None] | None = None
    """Those of a convolution, and its biases."""


class StateRunner:
    """An executor of one op, whose slots are filled with NaN at first."""

    def __init__(
        self,
        module: Any,
        scan: Scan,
        threads: int = 2,
        log: int = 0,
        slots: int = 8,
        dtype: DType = "float32",
        max_tokens: int = 96,
    ) -> None:
        layout = StateSlots.of([scan.layer], dtype, log)
        widths = [-(-cols * 4 // 64) * 64 for cols in (*scan.inputs, scan.outputs)]
        self.native = module.Executor(
            threads=threads,
            cpus=[],
            crowded=True,
            num_blocks=1,
            max_tokens=max_tokens,
            max_logits=1,
            max_sequences=8,
            max_positions=4096,
            vocabulary=1,
            arena_bytes=max_tokens * sum(widths),
            kv_elem="float32",
            kv_layers=[],
            state_slots=slots,
            state_log=log,
            state_bytes=layout.slot_bytes,
            state_elem=dtype,
            state_layers=list(layout.layers),
        )
        at, buffers, first = 0, [], 0
        for cols, width in zip((*scan.inputs, scan.outputs), widths, strict=True):
            buffers.append(self.native.add_buffer(at, "float32", cols, width, "T"))
            at += max_tokens * width
        *inputs, self._out = buffers
        for buffer, cols in zip(inputs, scan.inputs, strict=True):
            self.native.append_features(buffer, first)
            first += cols
        scan.append(self.native, inputs, self._out)
        for slot in range(slots):
            self.native.state_fill(slot, 0xFF)

    def run(
        self, pieces: Sequence[Piece], copies: Sequence[tuple[int, int]] = (), **changes: Any
    ) -> list[F32]:
        """What the op makes of each piece."""
        sizes = [piece.end - piece.first for piece in pieces]
        starts = np.cumsum([0, *sizes]).astype(np.int32)
        positions = np.concatenate([np.arange(p.first, p.end) for p in pieces])
        snapshots = [(s, *one) for s, piece in enumerate(pieces) for one in piece.snapshots]
        tables = StateTables(
            slots=_ints([piece.slot for piece in pieces]),
            seen=_ints([piece.known for piece in pieces]),
            tentative=_ints([piece.tentative for piece in pieces]),
            snapshots=_ints(snapshots).reshape(-1, 3),
            copies=_ints(list(copies)).reshape(-1, 2),
        )
        states: Any = tuple(
            changes.get(name, getattr(tables, name)) for name in tables.__dataclass_fields__
        )
        if "states" in changes:
            states = changes["states"]
        none, pairs = np.empty(0, np.int32), np.empty((0, 2), np.int32)
        self.native.run(
            np.zeros(len(positions), np.int32),
            positions.astype(np.int32),
            starts,
            _ints([piece.end for piece in pieces]),
            [],
            none,
            none,
            pairs,
            changes.get("tree_parents", none),
            pairs,
            np.concatenate([piece.rows[piece.first : piece.end] for piece in pieces]),
            states,
        )
        rows = self.native.view(self._out).view(np.float32)
        return [rows[starts[i] : starts[i + 1]].copy() for i in range(len(pieces))]

    def slot(self, slot: int) -> NDArray[np.uint8]:
        copy: NDArray[np.uint8] = self.native.state_copy(slot)
        return copy

    def close(self) -> None:
        self.native.close()


@dataclass(frozen=True)
class DeltaShape:
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 24
    value_dim: int = 40
    tiled: bool = False
    seed: int = 0
    steep: float = field(default=1.0)
    """Standard deviation of what decays are made of."""


def delta(shape: DeltaShape) -> Scan:
    """A gated delta net of these sizes."""
    rng = np.random.default_rng(shape.seed)
    hk, hv, dk, dv = shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim
    a_log, dt_bias = (rng.normal(0, 1, hv).astype(np.float32) for _ in range(2))
    keys, values = hk * dk, hv * dv

    def append(native: Any, inputs: list[int], out: int) -> None:
        native.append_gated_delta(
            layer=0,
            qkv=inputs[0],
            ba=inputs[1],
            out=out,
            a_log=native.add_constant(as_bytes(a_log)),
            dt_bias=native.add_constant(as_bytes(dt_bias)),
            key_heads=hk,
            tiled=shape.tiled,
        )

    def wide(rows: F32) -> F64:
        x = rows.astype(np.float64)
        q, k = (part.reshape(-1, hk, dk) for part in (x[:, :keys], x[:, keys : 2 * keys]))
        q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
        heads = np.arange(hv)
        of_key = heads % hk if shape.tiled else heads // (hv // hk)
        q, k = q[:, of_key] * dk**-0.5, k[:, of_key]
        v = x[:, 2 * keys : 2 * keys + values].reshape(-1, hv, dv)
        b, a = np.split(x[:, 2 * keys + values :], 2, axis=1)
        decay = np.exp(-np.exp(a_log) * np.logaddexp(0, a + dt_bias))
        beta = 1 / (1 + np.exp(-b))
        state, out = np.zeros((hv, dk, dv)), np.zeros((len(x), hv, dv))
        for t in range(len(x)):
            state *= decay[t, :, None, None]
            known = np.einsum("hk,hkv->hv", k[t], state)
            state += k[t, :, :, None] * (beta[t, :, None] * (v[t] - known))[:, None]
            out[t] = np.einsum("hk,hkv->hv", q[t], state)
        return out.reshape(len(x), -1)

    def draw(rng: Any, tokens: int) -> F32:
        qkv, ba = rng.normal(0, 1, (tokens, 2 * keys + values)), rng.normal(0, 1, (tokens, 2 * hv))
        rows: F32 = np.concatenate([qkv, ba * shape.steep], axis=1).astype(np.float32)
        return rows

    layer = StateLayer(2 * keys + values, 4, hv, dk, dv, keys + values + 2 * hv)
    return Scan(layer, (2 * keys + values, 2 * hv), values, append, wide, draw)


@dataclass(frozen=True)
class SelectiveShape:
    heads: int = 4
    head_dim: int = 40
    groups: int = 2
    state: int = 24
    limits: tuple[float, float] = (0.0, float("inf"))
    seed: int = 0
    steep: float = 1.0


def selective(shape: SelectiveShape) -> Scan:
    """A selective scan of these sizes."""
    rng = np.random.default_rng(shape.seed)
    heads, dim, groups, state = shape.heads, shape.head_dim, shape.groups, shape.state
    a_log, dt_bias, d = (rng.normal(0, 1, heads).astype(np.float32) for _ in range(3))
    width = heads * dim

    def append(native: Any, inputs: list[int], out: int) -> None:
        names = {"a_log": a_log, "dt_bias": dt_bias, "d": d}
        native.append_selective_scan(
            layer=0,
            xbc=inputs[0],
            dt=inputs[1],
            out=out,
            groups=groups,
            dt_limits=shape.limits,
            **{name: native.add_constant(as_bytes(x)) for name, x in names.items()},
        )

    def wide(rows: F32) -> F64:
        r = rows.astype(np.float64)
        x = r[:, :width].reshape(-1, heads, dim)
        b, c = (
            np.repeat(y.reshape(-1, groups, state), heads // groups, axis=1)
            for y in np.split(r[:, width : width + 2 * groups * state], 2, axis=1)
        )
        step = np.logaddexp(0, r[:, width + 2 * groups * state :] + dt_bias).clip(*shape.limits)
        decay = np.exp(-np.exp(a_log) * step)
        h, out = np.zeros((heads, dim, state)), np.zeros((len(r), heads, dim))
        for t in range(len(r)):
            h = h * decay[t, :, None, None]
            h += (step[t, :, None] * x[t])[:, :, None] * b[t, :, None, :]
            out[t] = np.einsum("hpn,hn->hp", h, c[t]) + d[:, None] * x[t]
        return out.reshape(len(r), -1)

    def draw(rng: Any, tokens: int) -> F32:
        xbc = rng.normal(0, 1, (tokens, width + 2 * groups * state))
        dt = rng.normal(0, shape.steep, (tokens, heads))
        rows: F32 = np.concatenate([xbc, dt], axis=1).astype(np.float32)
        return rows

    layer = StateLayer(
        width + 2 * groups * state, 4, heads, state, dim, groups * state + width + heads
    )
    return Scan(layer, (width + 2 * groups * state, heads), width, append, wide, draw)


@dataclass(frozen=True)
class ConvShape:
    channels: int = 40
    kernel: int = 4
    bias: bool = True
    silu: bool = True
    dtype: DType = "float32"
    seed: int = 0


def conv(shape: ConvShape) -> Scan:
    """A convolution of these sizes."""
    rng = np.random.default_rng(shape.seed)
    weight = rng.normal(0, 1, (shape.channels, shape.kernel)).astype(np.float32)
    bias = rng.normal(0, 1, shape.channels).astype(np.float32)

    def append(native: Any, inputs: list[int], out: int) -> None:
        native.append_state_conv(
            layer=0,
            x=inputs[0],
            out=out,
            weight=native.add_constant(as_bytes(np.ascontiguousarray(weight.T))),
            bias=native.add_constant(as_bytes(bias)) if shape.bias else None,
            kernel=shape.kernel,
            silu=shape.silu,
        )

    def wide(rows: F32) -> F64:
        u = rounded(rows, shape.dtype).astype(np.float64)
        before = np.concatenate([np.zeros((shape.kernel - 1, shape.channels)), u])
        y = sum(weight[:, j] * before[j : j + len(u)] for j in range(shape.kernel))
        y = y + (bias if shape.bias else 0.0)
        out: F64 = y / (1 + np.exp(-y)) if shape.silu else y
        return out

    def draw(rng: Any, tokens: int) -> F32:
        rows: F32 = rng.normal(0, 1, (tokens, shape.channels)).astype(np.float32)
        return rows

    layer = StateLayer(shape.channels, shape.kernel, 1, 1, 1, 1)
    weights = (weight, bias if shape.bias else None)
    return Scan(layer, (shape.channels,), shape.channels, append, wide, draw, weights)


def rounded(x: F32, dtype: DType) -> F32:
    """``x`` in this type."""
    import ml_dtypes

    kinds: dict[str, Any] = {"float32": np.float32, "float16": np.float16}
    result: F32 = x.astype(kinds.get(dtype, ml_dtypes.bfloat16)).astype(np.float32)
    return result


def _ints(values: Sequence[Any]) -> NDArray[np.int32]:
    return np.array(values, np.int32)
