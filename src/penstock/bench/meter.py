"""Measures the time and bytes of steps, by an executor around the real one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from penstock.cache.geometry import BLOCK_SIZE, Window, float_dtype
from penstock.interface.executor import Executor, OpTime, Pending, Sampling, StepOutcome, run
from penstock.interface.host_executor import HostExecutor
from penstock.interface.messages import EngineRequest, SequenceUpdate
from penstock.interface.sampler import Sampler
from penstock.interface.step import StepInput, StepResult
from penstock.models.spec import ModelSpec, attention_of
from penstock.plan.costs import StepSize, multiply_adds, seen, weight_bytes_of
from penstock.plan.kv_groups import kv_layers
from penstock.plan.ops import Embed, ExpertLinear, HeadLinear, Linear, Rows, WeightName
from penstock.plan.plan import Plan
from penstock.plan.state_layers import state_layers
from penstock.resolved_config import ResolvedConfig


class SteppedCore(Protocol):
    """The part of :class:`penstock.engine.core.EngineCore` that a benchmark drives."""

    @property
    def has_work(self) -> bool: ...

    def add_request(self, request: EngineRequest) -> None: ...

    def step(self) -> list[SequenceUpdate]: ...


@dataclass(frozen=True)
class StepProfile:
    """What the parts of one step took."""

    size: StepSize
    ops: Sequence[OpTime]
    sampling_seconds: float


@dataclass(frozen=True)
class ExecutorRun:
    """One call of the executor."""

    seconds: float
    tokens: int
    sequences: int
    shortest_context: int  # tokens in the cache after the step
    kv_bytes: int  # keys and values read once per sequence, and those written; states both
    profile: StepProfile | None = None


@dataclass(frozen=True)
class Step:
    """One step of the engine as its caller sees it."""

    seconds: float
    run: ExecutorRun | None  # None: the step had nothing to compute

    @property
    def host_seconds(self) -> float:
        """Time outside the executor: scheduling, building the step, sampling, output."""
        return self.seconds - (self.run.seconds if self.run else 0.0)


class MeteredExecutor(HostExecutor):
    """Passes every call on, and remembers how long the last one took and what it moved.

    It does not work ahead: steps run one after the other, so that each can be measured alone. Of a
    pipeline as many are in flight as it takes, since stages would idle otherwise, and a step takes
    the time that is waited for it.
    """

    fills_pipelines = True
    """Whether steps of a pipeline are in flight together."""

    def __init__(self, executor: Executor, spec: ModelSpec, config: ResolvedConfig) -> None:
        self._executor = executor
        self._kv = _KvTraffic(spec, config)
        self._last: tuple[float, StepInput] | None = None
        self.num_blocks = executor.num_blocks
        self.packed = executor.packed
        self.tunable = executor.tunable
        self.adapters = executor.adapters
        self._pipeline = self.fills_pipelines and config.pipeline_parallel > 1
        if self._pipeline:
            self.capabilities = executor.capabilities

    def submit(self, step: StepInput, sampling: Sampling | None = None) -> Pending:
        if not self._pipeline:
            return super().submit(step, sampling)
        return MeteredStep(self._executor.submit(step, sampling), partial(self._note, step))

    def _note(self, step: StepInput, seconds: float) -> None:
        self._last = seconds, step

    def run(self, step: StepInput) -> StepResult:
        start = time.perf_counter()
        result = self.compute(step)
        self._last = time.perf_counter() - start, step
        return result

    def compute(self, step: StepInput) -> StepResult:
        """Have the executor run the step."""
        return run(self._executor, step)

    def take(self) -> ExecutorRun | None:
        """The call since the last ``take``, which comes before the next step is built."""
        if self._last is None:
            return None
        (seconds, step), self._last = self._last, None
        return ExecutorRun(
            seconds=seconds,
            tokens=step.num_tokens,
            sequences=step.num_sequences,
            shortest_context=int(step.context_lens.min()),
            kv_bytes=self._kv.bytes(step),
            profile=self.profiled(step),
        )

    def profiled(self, step: StepInput) -> StepProfile | None:
        """What the parts of ``step``, the last one, took, where that is measured."""
        return None

    @property
    def sampler(self) -> Sampler[Any]:
        return self._executor.sampler

    def close(self) -> None:
        self._executor.close()


class MeteredStep:
    """A step of a pipeline, whose time is that for which it is waited."""

    def __init__(self, pending: Pending, note: Callable[[float], None]) -> None:
        self._pending = pending
        self._note = note

    def wait(self) -> StepOutcome:
        start = time.perf_counter()
        outcome = self._pending.wait()
        self._note(time.perf_counter() - start)
        return outcome


class _KvTraffic:
    """Bytes of keys and values, of rows and of states that a step moves, from its lengths alone."""

    def __init__(self, spec: ModelSpec, config: ResolvedConfig) -> None:
        dtype = config.kv_cache_dtype
        layers = kv_layers(spec.layers)
        attended = [layer for layer in layers if layer.rows is None]
        per_token = sum(layer.block_bytes(dtype) for layer in attended) // BLOCK_SIZE
        heads, total = Counter[Window | None](), 0
        for layer in spec.layers:
            a = attention_of(layer)
            if a is None:
                continue
            heads[a.window] += a.num_kv_heads * a.head_dim
            if a.kv_from is None:  # else what another layer has cached is read once more
                total += a.num_kv_heads * a.head_dim
        self._per_token = per_token
        # Layers with a window read at most that many tokens.
        self._shares = [(window, per_token * n / total) for window, n in heads.items()]
        self._of_rows = [
            (layer.window, layer.block_bytes(dtype) // layer.rows) for layer in layers if layer.rows
        ]
        inputs = float_dtype(dtype, otherwise=config.dtype)
        self._state = sum(layer.num_bytes(inputs, 0) for layer in state_layers(spec.layers))

    def bytes(self, step: StepInput) -> int:
        read = 0.0
        lens = step.context_lens
        for window, share in self._shares:
            read += share * int(seen(lens, window).sum())
        moved = int(read) + self._per_token * step.num_tokens
        moved += 2 * self._state * step.num_sequences
        for window, row in self._of_rows:  # those before the step's first token, and its own
            before = seen(lens - np.diff(step.query_starts) + 1, window) - 1
            moved += row * (int(before.sum()) + step.num_tokens)
        return moved


def weight_bytes_per_step(plan: Plan, rows: int = 1) -> int:
    """Bytes of all weights that a step of ``rows`` tokens reads: everything but the embedding's
    lookup and experts that no token is given to.

    A tied embedding counts once, as the output matrix; a quantized matrix, as its codes and scales.
    One token reads exactly the experts that it has. How many more tokens read is an expectation:
    as if each token's experts were drawn evenly and independently.
    """
    sizes: dict[WeightName, float] = {}
    for op in plan.ops:
        if not isinstance(op, Embed):
            sizes |= weight_bytes_of(plan, op, rows)
    return round(sum(sizes.values()))


def linear_flops(plan: Plan, rows: Rows) -> int:
    """Floating-point operations of all matrix products, per row of this kind.

    A prompt token costs those of ``Rows.TOKENS``; only selected rows cost those of
    ``Rows.SELECTED`` as well, and rows of logits, which are selected, too, those of
    ``Rows.LOGITS``: these and the output matrix. Attention is not counted: its work grows with the
    context. Of experts those count that a token is given to.
    """
    kinds = {Rows.SELECTED, Rows.LOGITS} if rows == Rows.LOGITS else {rows}
    bases = {kind.base for kind in kinds}
    flops = 0
    for op in plan.ops:
        if isinstance(op, Linear | ExpertLinear | HeadLinear):
            out = plan.buffers[op.out].rows
            if out.base in bases:
                flops += 2 * out.times * multiply_adds(op)
    return flops


def timed_step(core: SteppedCore, meter: MeteredExecutor) -> tuple[list[SequenceUpdate], Step]:
    """Run one step of ``core``, whose executor is ``meter``."""
    start = time.perf_counter()
    updates = core.step()
    return updates, Step(time.perf_counter() - start, meter.take())
