"""Bind a fused plan to the native runtime: place buffers, pack weights, append ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.executor import CpuExecutor
from penstock.backends.cpu.forms import form_of
from penstock.backends.cpu.interface import (
    BufferId,
    ConstantId,
    MatrixId,
    NativeExecutor,
    NativeModule,
)
from penstock.backends.cpu.kv_pages import KvPages
from penstock.backends.cpu.native import load
from penstock.backends.cpu.pack import (
    DTYPES,
    Fill,
    NativeRegions,
    as_bytes,
    pack,
)
from penstock.backends.cpu.tune import (
    LEAST_BYTES,
    Product,
    ProductTuner,
    circumstances,
)
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.interface.executor import Limits
from penstock.interface.weights import PackedWeights, WeightSource
from penstock.models.rope import rope_tables
from penstock.plan import ops
from penstock.plan.memory import plan_memory
from penstock.plan.plan import Plan


def bind(
    plan: Plan,
    weights: WeightSource | PackedWeights,
    limits: Limits,
    module: NativeModule | None = None,
) -> CpuExecutor:
    """An executor of ``plan``, which must be fused; ``module`` defaults to this machine's best.

    Weights are read once each, in the order of the ops, and copied into the layout of the kernels,
    or restored in that layout; no array of ``weights`` is kept. Raises ConfigError where there is
    no native module, where the plan needs what no native kernel does, and where memory does not
    suffice; WeightError and ArtifactError where ``weights`` does.
    """
    module = module or load()
    # The native executor has one bound of both kinds of rows. What no step uses of logits' room is
    # never touched, and takes no memory.
    selected = limits.max_selected_rows
    memory = plan_memory(plan, limits.max_tokens, selected)
    pages = KvPages.of(plan)
    kv_bytes = limits.num_blocks * plan.kv_groups.page_bytes
    try:
        native = module.Executor(
            threads=limits.threads,
            cpus=list(limits.cpus),
            crowded=limits.threads > detect().compute_threads,
            num_blocks=limits.num_blocks,
            max_tokens=limits.max_tokens,
            max_logits=selected,
            max_sequences=limits.max_sequences,
            max_positions=plan.max_positions,
            vocabulary=plan.spec.vocab_size,
            arena_bytes=memory.total_bytes,
            kv_elem=plan.kv_dtype,
            kv_groups=len(plan.kv_groups),
            kv_parts=pages.parts,
            kv_part_bytes=pages.part_bytes,
            kv_layers=list(pages.layers),
        )
        binder = _Binder(plan, native)
        for name, buffer in plan.buffers.items():
            binder.buffers[name] = native.add_buffer(
                memory.offsets[name],
                buffer.element,
                buffer.cols,
                memory.strides[name],
                str(buffer.rows),
            )
        for op in plan.ops:
            binder.append(op)
        regions = NativeRegions(native, tuple(binder.regions))
        try:
            if isinstance(weights, PackedWeights):
                weights.restore(regions)
            else:
                pack(binder.fills, weights)
        except BaseException:
            native.close()  # now: who handles the error may want the memory
            raise
        logits, *more_logits = (
            native.view(binder.buffers[name]).view(np.float32)
            for name in (plan.logits, *plan.more_logits)
        )
        argmax = native.view(binder.buffers[plan.argmax]).view(np.int32)[:, 0]
        rounded = plan.buffers[plan.hidden].element == "bfloat16"
        hidden = native.view(binder.buffers[plan.hidden]).view(
            DTYPES["bfloat16" if rounded else "float32"]
        )
        taps = None
        if plan.taps is not None:
            taps = native.view(binder.buffers[plan.taps]).view(np.float32)
    except ValueError as error:
        raise ConfigError(
            f"the cpu backend cannot run this model as asked: {error}; "
            "choose the slow NumPy backend with --backend reference"
        ) from error
    except MemoryError as error:
        raise ConfigError(
            "the system has not enough memory for the packed weights and "
            f"{kv_bytes / 2**30:.2f} GiB of KV cache; lower kv_cache_bytes"
        ) from error
    products = [p for p in binder.products() if p.matrix_bytes >= LEAST_BYTES]
    tuner = (
        ProductTuner(native, products, circumstances(detect(), limits.threads))
        if products
        else None
    )
    return CpuExecutor(
        native,
        module.isa,
        limits.num_blocks,
        logits,
        argmax,
        hidden,
        regions,
        tuner,
        plan.feature_size,
        taps,
        tuple(more_logits),
    )


class _Binder:
    """Appends ops to a native executor and reserves what their weights take, for later filling."""

    def __init__(self, plan: Plan, native: NativeExecutor) -> None:
        self.buffers: dict[ops.BufferName, BufferId] = {}
        self.regions: list[str] = []
        """For each of the executor's regions, the names of its weights, joined by ``+``."""
        self.fills: list[Fill] = []
        self._matrices: dict[str, list[tuple[MatrixId, int, bool]]] = {}
        """The matrices by shape and format: each with its region and whether it multiplies selected
        rows only."""
        self._plan = plan
        self._dtype = DTYPES[plan.weight_dtype]
        self._shapes = {name: weight.shape for name, weight in plan.weights.items()}
        self._native = native
        self._ropes: dict[int, tuple[ConstantId, ConstantId]] = {}
        self._append: dict[type[ops.Op], Callable[[Any], None]] = {
            ops.Embed: self._embed,
            ops.AddNorm: self._add_norm,
            ops.Linear: self._linear,
            ops.RopeWrite: self._rope_write,
            ops.Attention: self._attention,
            ops.SelectRows: self._select_rows,
            ops.Argmax: self._argmax,
            ops.Features: self._features,
            ops.Join: self._join,
            ops.Add: self._add,
            ops.Activate: self._activate,
            ops.AddActivated: self._add_activated,
        }

    def products(self) -> list[Product]:
        """The matrices, those that are alike together."""
        sizes = self._native.region_bytes
        return [
            Product(
                name,
                tuple(matrix for matrix, _, _ in alike),
                sizes[alike[0][1]],
                all(logits for _, _, logits in alike),
            )
            for name, alike in self._matrices.items()
        ]

    def append(self, op: ops.Op) -> None:
        append = self._append.get(type(op))
        if append is None:
            raise ValueError(f"op {op.kind} has no native kernel; bind the fused plan")
        append(op)

    def _embed(self, op: ops.Embed) -> None:
        size = math.prod(self._shapes[op.weight])
        table = self._constant([(op.weight, size)], self._dtype)
        self._native.append_embed(table, self._plan.weight_dtype, self.buffers[op.out])

    def _add_norm(self, op: ops.AddNorm) -> None:
        self._native.append_add_norm(
            self.buffers[op.residual],
            None if op.delta is None else self.buffers[op.delta],
            self.buffers[op.out],
            self._floats(op.weight),
            op.eps,
        )

    def _linear(self, op: ops.Linear) -> None:
        native = self._native
        form = form_of(op.scheme, self._plan.weight_dtype)
        matrix = form.add(native, op)
        if not op.weight_only:  # whose products have nothing to tune
            shape = f"{form} {'2x' if op.gated is not None else ''}{op.n}x{op.k}"
            logits = self._plan.buffers[op.out].rows.base != "T"
            self._matrices.setdefault(shape, []).append((matrix, len(self.regions), logits))
        self.regions.append("+".join(part.weight for part in op.parts))
        first = 0
        for part in op.parts:
            put = partial(form.pack, native, matrix, first, part.weight)
            self.fills.append(Fill(part.weight, put))
            first += part.n
        native.append_linear(
            matrix, self._bias(op), self.buffers[op.x], self.buffers[op.out], op.gated or "none"
        )

    def _bias(self, op: ops.Linear) -> ConstantId | None:
        """The parts' biases joined, zeros where one has none; None if none has any."""
        if all(part.bias is None for part in op.parts):
            return None
        return self._constant([(part.bias, part.n) for part in op.parts], DTYPES["float32"])

    def _rope_write(self, op: ops.RopeWrite) -> None:
        cos, sin = self._rope(op.rope)
        self._native.append_rope_write(
            layer=op.layer,
            qkv=self.buffers[op.qkv],
            q=self.buffers[op.q],
            heads=op.heads,
            cos=cos,
            sin=sin,
            rope_dim=self._plan.ropes[op.rope].dim,
            q_norm=None if op.q_norm is None else self._floats(op.q_norm),
            k_norm=None if op.k_norm is None else self._floats(op.k_norm),
            eps=op.eps,
        )

    def _attention(self, op: ops.Attention) -> None:
        self._native.append_attention(
            layer=op.layer,
            q=self.buffers[op.q],
            out=self.buffers[op.out],
            heads=op.heads,
            scale=op.scale,
            window=op.window or 0,
        )

    def _select_rows(self, op: ops.SelectRows) -> None:
        self._native.append_select_rows(self.buffers[op.x], self.buffers[op.out], op.first)

    def _argmax(self, op: ops.Argmax) -> None:
        self._native.append_argmax(self.buffers[op.x], self.buffers[op.out])

    def _features(self, op: ops.Features) -> None:
        self._native.append_features(self.buffers[op.out], op.first)

    def _join(self, op: ops.Join) -> None:
        self._native.append_join([self.buffers[x] for x in op.xs], self.buffers[op.out])

    def _add(self, op: ops.Add) -> None:
        x, y, out = (self.buffers[name] for name in (op.x, op.y, op.out))
        self._native.append_add_activated(x, y, out, "none")

    def _activate(self, op: ops.Activate) -> None:
        x, out = self.buffers[op.x], self.buffers[op.out]
        self._native.append_add_activated(None, x, out, op.activation)

    def _add_activated(self, op: ops.AddActivated) -> None:
        x, y, out = (self.buffers[name] for name in (op.x, op.y, op.out))
        self._native.append_add_activated(x, y, out, op.activation)

    def _rope(self, index: int) -> tuple[ConstantId, ConstantId]:
        if index not in self._ropes:
            cos, sin = rope_tables(self._plan.ropes[index], self._plan.max_positions)
            add = self._native.add_constant
            self._ropes[index] = (add(as_bytes(cos)), add(as_bytes(sin)))
        return self._ropes[index]

    def _floats(self, name: ops.WeightName) -> ConstantId:
        return self._constant([(name, math.prod(self._shapes[name]))], DTYPES["float32"])

    def _constant(
        self, parts: Sequence[tuple[ops.WeightName | None, int]], dtype: np.dtype[Any]
    ) -> ConstantId:
        """Room for weights of so many elements, one after another; what has no name stays zero."""
        constant = self._native.reserve_constant(sum(n for _, n in parts) * dtype.itemsize)
        self.regions.append("+".join(name for name, _ in parts if name is not None))
        offset = 0
        for name, n in parts:
            if name is not None:
                self.fills.append(Fill(name, partial(self._fill, constant, offset, dtype)))
            offset += n * dtype.itemsize
        return constant

    # What fills call, with the weight's array last.

    def _fill(
        self, constant: ConstantId, offset: int, dtype: np.dtype[Any], array: NDArray[Any]
    ) -> None:
        self._native.fill_constant(constant, offset, as_bytes(array.astype(dtype, copy=False)))
