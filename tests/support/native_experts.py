"""Native products of experts, and the plain products that they are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.forms import form_of
from penstock.backends.cpu.gating import gating
from penstock.backends.cpu.matrix_form import MatrixPart
from penstock.models.spec import DType, Gating, Routing
from penstock.plan.ops import ExpertLinear, Linear, LinearPart
from penstock.quant import QuantScheme
from support.native_arrays import as_bytes

TYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Form:
    """What matrices are kept as."""

    dtype: DType
    scheme: QuantScheme | None = None
    weight_only: bool = False

    def __str__(self) -> str:
        name = self.dtype if self.scheme is None else str(self.scheme)
        return f"{name} weight only" if self.weight_only else name


@dataclass(frozen=True)
class Experts:
    """Parts ``[experts, n, k]`` float32: one, or gate and up."""

    form: Form
    parts: tuple[NDArray[np.float32], ...]
    gated: Gating | None = None
    biases: NDArray[np.float32] | None = None
    """``[experts, n of all parts]``."""

    @classmethod
    def random(
        cls, rng: np.random.Generator, form: Form, experts: int, n: int, k: int, gated: bool = False
    ) -> Experts:
        """Weights that are not centred at zero, so that zero points matter."""
        parts = tuple(
            (rng.standard_normal((experts, n, k)) + 0.3).astype(np.float32)
            for _ in range(1 + gated)
        )
        return cls(form, parts, "silu" if gated else None)

    @property
    def number(self) -> int:
        return len(self.parts[0])

    def run(
        self,
        module: Any,
        x: NDArray[Any],
        ids: NDArray[np.int32],
        threads: int = 2,
        out: str = "float32",
    ) -> NDArray[Any]:
        """Rows ``[chosen * T, n]`` of the experts ``ids`` ``[T, chosen]``; x has a row for each
        token, or for each of them."""
        tokens, chosen = ids.shape
        logits = np.full((tokens, self.number), -9.0, np.float32)
        np.put_along_axis(logits, ids, -np.arange(chosen, dtype=np.float32)[None], axis=1)
        step = _Step(module, tokens, threads)
        scores = step.buffer("float32", self.number, values=logits)
        chosen_ids = step.buffer("int32", chosen)
        shares = step.buffer("float32", chosen)
        source = step.buffer(x.dtype.name, x.shape[1], len(x) // tokens, x)
        to = step.buffer(out, self.parts[0].shape[1], chosen)
        n, k = self.parts[0].shape[1:]
        parts = tuple(LinearPart(f"part {i}", n) for i in range(len(self.parts)))
        op = ExpertLinear(
            *("x", "ids", "out", k, parts, self.gated), self.form.scheme, self.form.weight_only
        )
        form, rows = form_of(self.form.scheme, self.form.dtype), 0
        matrix = form.add(step.native, op, self.number)
        for expert in range(self.number):
            for part in self.parts:
                form.pack(MatrixPart(step.native, matrix, rows, "a part"), part[expert])
                rows += n
        append_route(step.native, scores, chosen_ids, shares, Routing())
        bias = None if self.biases is None else step.native.add_constant(as_bytes(self.biases))
        step.native.append_expert_linear(matrix, bias, source, chosen_ids, to, *gating(self.gated))
        step.run()
        np.testing.assert_array_equal(step.values(chosen_ids, np.int32), ids)
        return step.values(to, TYPES[out])

    def alone(
        self, module: Any, expert: int, x: NDArray[Any], out: str = "float32"
    ) -> NDArray[Any]:
        """The plain product of rows of x with one expert's matrix."""
        n, k = self.parts[0].shape[1:]
        parts = tuple(LinearPart(f"part {i}", n) for i in range(len(self.parts)))
        op = Linear(*("x", "out", k, parts, self.gated), self.form.scheme, self.form.weight_only)
        step = _Step(module, len(x), 2)
        source = step.buffer(x.dtype.name, k, values=x)
        to = step.buffer(out, n)
        form = form_of(self.form.scheme, self.form.dtype)
        matrix = form.add(step.native, op, 1)
        for i, part in enumerate(self.parts):
            form.pack(MatrixPart(step.native, matrix, i * n, "a part"), part[expert])
        bias = None
        if self.biases is not None:
            bias = step.native.add_constant(as_bytes(self.biases[expert]))
        step.native.append_linear(matrix, bias, source, to, *gating(self.gated))
        step.run()
        return step.values(to, TYPES[out])

    def each_alone(
        self, module: Any, x: NDArray[Any], ids: NDArray[np.int32], out: str = "float32"
    ) -> NDArray[Any]:
        """What :meth:`run` is to give."""
        each = ids.reshape(-1)
        rows = x if len(x) == len(each) else np.repeat(x, ids.shape[1], axis=0)
        result = np.empty((len(each), self.parts[0].shape[1]), TYPES[out])
        for expert in np.unique(each):
            mine = each == expert
            result[mine] = self.alone(module, expert, np.ascontiguousarray(rows[mine]), out)
        return result


def append_route(
    executor: Any,
    logits: int,
    ids: int,
    shares: int,
    routing: Routing,
    bias: int | None = None,
    scale: int | None = None,
) -> None:
    executor.append_route(
        logits=logits,
        ids=ids,
        shares=shares,
        choice_bias=bias,
        share_scale=scale,
        scores=routing.scores,
        normalize=routing.normalize,
        normalize_eps=routing.normalize_eps,
        normalize_least=routing.normalize_least,
        scale=routing.scale,
        groups=routing.groups,
        groups_chosen=routing.groups_chosen,
        top2=routing.group_score == "top2",
        jitter=routing.jitter,
    )


def gathered_by_expert(
    module: Any,
    x: NDArray[Any],
    ids: NDArray[np.int32],
    orders: NDArray[np.int32],
    threads: int,
) -> NDArray[Any]:
    """Rows ``[chosen * T, k]`` of x, each in the order of its expert: orders ``[experts, k]``."""
    tokens, chosen = ids.shape
    logits = np.full((tokens, len(orders)), -9.0, np.float32)
    np.put_along_axis(logits, ids, -np.arange(chosen, dtype=np.float32)[None], axis=1)
    step = _Step(module, tokens, threads)
    scores = step.buffer("float32", len(orders), values=logits)
    chosen_ids, shares = step.buffer("int32", chosen), step.buffer("float32", chosen)
    source = step.buffer(x.dtype.name, x.shape[1], len(x) // tokens, x)
    to = step.buffer(x.dtype.name, x.shape[1], chosen)
    append_route(step.native, scores, chosen_ids, shares, Routing())
    places = step.native.add_constant(as_bytes(orders))
    step.native.append_gather_columns(source, [to], [places], chosen_ids)
    step.run()
    return step.values(to, x.dtype.type)


class _Step:
    """An executor of a few ops whose buffers are filled by hand."""

    def __init__(self, module: Any, tokens: int, threads: int) -> None:
        self.native = module.Executor(
            threads=threads,
            cpus=[],
            crowded=True,
            num_blocks=1,
            max_tokens=tokens,
            max_logits=1,
            max_sequences=tokens,
            max_positions=1,
            vocabulary=1,
            arena_bytes=64 << 20,
            kv_elem="float32",
            kv_layers=[],
        )
        self._tokens = tokens
        self._end = 0

    def buffer(
        self, elem: str, cols: int, times: int = 1, values: NDArray[Any] | None = None
    ) -> int:
        row = -(-cols * (2 if elem == "bfloat16" else 4) // 64) * 64
        buffer = self.native.add_buffer(self._end, elem, cols, row, f"{times}T")
        self._end += row * times * self._tokens
        view = self.native.view(buffer)
        view[:] = 0xA5 if values is None else values.view(np.uint8)
        return int(buffer)

    def run(self) -> None:
        none, pairs = np.empty(0, np.int32), np.empty((0, 2), np.int32)
        zeros = np.zeros(self._tokens, np.int32)
        starts = np.arange(self._tokens + 1, dtype=np.int32)
        self.native.run(
            *(zeros, zeros, starts, zeros + 1, [], none, none, pairs, none, pairs), features=None
        )

    def values(self, buffer: int, dtype: Any) -> NDArray[Any]:
        return np.ascontiguousarray(self.native.view(buffer)).view(dtype)


def combined(
    module: Any,
    x: NDArray[np.float32],
    chosen: int,
    shares: NDArray[np.float32] | None,
    threads: int = 2,
) -> NDArray[np.float32]:
    """``CombineExperts`` of x ``[chosen * T, c]``."""
    step = _Step(module, len(x) // chosen, threads)
    source = step.buffer("float32", x.shape[1], chosen, x)
    weights = None if shares is None else step.buffer("float32", chosen, values=shares)
    out = step.buffer("float32", x.shape[1])
    step.native.append_combine_experts(source, weights, out)
    step.run()
    return step.values(out, np.float32)


def scaled(
    module: Any, x: NDArray[Any], by: NDArray[np.float32], sigmoid: bool, out: str
) -> NDArray[Any]:
    """``ScaleRows`` of x."""
    step = _Step(module, len(by), 2)
    source = step.buffer(x.dtype.name, x.shape[1], len(x) // len(by), x)
    factors = step.buffer("float32", by.shape[1], values=by)
    to = step.buffer(out, x.shape[1], by.shape[1])
    step.native.append_scale_rows(source, factors, to, sigmoid)
    step.run()
    return step.values(to, TYPES[out])


def routed(
    module: Any,
    logits: NDArray[np.float32],
    chosen: int,
    routing: Routing,
    choice_bias: NDArray[np.float32] | None = None,
    threads: int = 2,
    share_scale: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """``Route`` of logits ``[T, experts]``."""
    step = _Step(module, len(logits), threads)
    scores = step.buffer("float32", logits.shape[1], values=logits)
    ids, shares = step.buffer("int32", chosen), step.buffer("float32", chosen)
    bias = None if choice_bias is None else step.native.add_constant(as_bytes(choice_bias))
    scale = None if share_scale is None else step.native.add_constant(as_bytes(share_scale))
    append_route(step.native, scores, ids, shares, routing, bias, scale)
    step.run()
    return step.values(ids, np.int32), step.values(shares, np.float32)
