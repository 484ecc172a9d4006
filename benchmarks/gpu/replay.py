"""The plan alone on the device: whole decode steps, and op by op.

This reads the executor's own parts, as nothing else may: it measures what they take.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpu.results import ChunkStep, OpTime, StepTimes
from gpu.timing import Timer, best
from penstock.backends.cuda.executor import CudaExecutor
from penstock.backends.cuda.step import Layout, arrays_of
from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.step import KvTables, StepInput
from penstock.plan.ops import ExpertLinear, Linear, Op
from penstock.plan.plan import Plan


def decode_step(batch: int, context: int, num_blocks: int) -> StepInput:
    """One token of each of ``batch`` sequences, the last of ``context``, in blocks of their own.

    Where the cache has fewer blocks, sequences share them; their last tokens lie apart as long as
    there is a block for each. Raises ValueError for fewer.
    """
    blocks = -(-context // BLOCK_SIZE)
    if num_blocks < max(batch, blocks):
        raise ValueError(f"{num_blocks} blocks do not hold {batch} sequences of {context} tokens")
    table = np.arange(batch)[:, None] + batch * np.arange(blocks)[None]
    table = (table % num_blocks).astype(np.int32)
    last = (context - 1) % BLOCK_SIZE
    return _step(
        positions=np.full(batch, context - 1),
        slots=table[:, -1] * BLOCK_SIZE + last,
        query_starts=np.arange(batch + 1),
        context_lens=np.full(batch, context),
        tables=table,
        logit_rows=np.arange(batch),
    )


def prefill_step(tokens: int, context: int, num_blocks: int) -> StepInput:
    """The last ``tokens`` of a prompt of ``context``, with logits of the last one alone.

    Raises ValueError where the cache does not hold the prompt.
    """
    blocks = -(-context // BLOCK_SIZE)
    if num_blocks < blocks:
        raise ValueError(f"{num_blocks} blocks do not hold a sequence of {context} tokens")
    positions = np.arange(context - tokens, context)
    return _step(
        positions=positions,
        slots=positions,  # block i of the sequence is block i of the cache
        query_starts=np.array([0, tokens]),
        context_lens=np.array([context]),
        tables=np.arange(blocks)[None],
        logit_rows=np.array([tokens - 1]),
    )


def chunk_step(chunk: int, decodes: int, context: int, num_blocks: int) -> StepInput:
    """The last ``chunk`` tokens of a prompt beside ``decodes`` sequences that decode, all then of
    ``context`` tokens, with logits of the last of each.

    Blocks are shared as in :func:`decode_step`. Raises ValueError as that, and where the context is
    shorter than the chunk.
    """
    if context < chunk:
        raise ValueError(f"a chunk of {chunk} tokens does not fit a context of {context}")
    step = decode_step(decodes + 1, context, num_blocks)
    read = np.arange(context - chunk, context, dtype=np.int32)
    (tables,) = step.groups
    table = tables.block_ids[: tables.block_starts[1]]
    slots = table[read // BLOCK_SIZE] * BLOCK_SIZE + read % BLOCK_SIZE
    ends = np.arange(chunk, chunk + decodes + 1, dtype=np.int32)
    return replace(
        step,
        token_ids=np.ones(chunk + decodes, np.int32),
        positions=np.concatenate([read, step.positions[1:]]),
        groups=(tables._replace(slots=np.concatenate([slots, tables.slots[1:]])),),
        query_starts=np.concatenate([np.zeros(1, np.int32), ends]),
        logit_rows=ends - 1,
    )


def _step(
    positions: NDArray[np.integer],
    slots: NDArray[np.integer],
    query_starts: NDArray[np.integer],
    context_lens: NDArray[np.integer],
    tables: NDArray[np.integer],
    logit_rows: NDArray[np.integer],
) -> StepInput:
    starts = np.arange(len(tables) + 1) * tables.shape[1]
    return StepInput(
        token_ids=np.ones(len(positions), np.int32),
        positions=positions.astype(np.int32),
        groups=(
            KvTables(
                slots.astype(np.int32), starts.astype(np.int32), tables.reshape(-1).astype(np.int32)
            ),
        ),
        query_starts=query_starts.astype(np.int32),
        context_lens=context_lens.astype(np.int32),
        logit_rows=logit_rows.astype(np.int32),
        block_copies=np.empty((0, 2), np.int32),
    )


class Replay:
    """Runs steps on an executor that is idle. What they write to the cache stays there."""

    def __init__(self, executor: CudaExecutor, plan: Plan, timer: Timer) -> None:
        self._executor = executor
        self._plan = plan
        self._timer = timer

    def decode_seconds(self, step: StepInput, times: int, repeats: int) -> float:
        """One decode step as its graph runs it; where there are no graphs, launched each time."""
        executor = self._executor
        bucket = executor._buckets.holding(step)
        if bucket is None:
            raise ValueError(f"no graph holds a step of {step.num_sequences} sequences")
        there = executor._write_padded(step, bucket)
        run: Callable[[], object]
        if executor._graphs is not None:
            run = partial(executor._graphs.replay, bucket)
        else:
            assert executor._program is not None
            run = partial(executor._program.run, there)
        return best(self._timer, run, times, repeats)

    def chunk_step(self, chunk: int, step: StepInput, times: int, repeats: int) -> ChunkStep:
        """A step of :func:`chunk_step`, with all that the host does for it."""
        executor = self._executor
        replayed, launched = partial(executor._start, step), partial(executor._launch, step)
        return ChunkStep(
            chunk=chunk,
            decodes=step.num_sequences - 1,
            context=int(step.context_lens[0]),
            padded=None if executor._graphs is None else executor._buckets.holding(step),
            replayed_s=best(self._timer, replayed, times, repeats),
            launched_s=best(self._timer, launched, times, repeats),
            replayed_host_s=self._host_seconds(replayed, times),
            launched_host_s=self._host_seconds(launched, times),
        )

    def _host_seconds(self, call: Callable[[], object], times: int) -> float:
        """Median of what ``call`` takes to return, while the device is idle."""
        spent = []

        def timed() -> None:
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)

        for _ in range(times):
            self._timer.seconds(timed, 1)
        return sorted(spent)[len(spent) // 2]

    def op_times(self, name: str, step: StepInput, repeats: int) -> StepTimes:
        """Every op of ``step``, those of one name added up; the fastest pass of ``repeats``."""
        executor = self._executor
        assert executor._program is not None
        arrays = arrays_of(step, [kernel.plan_work(step) for kernel in executor._attention])
        layout = Layout.of([array.size for array in arrays])
        executor._buffer.write(layout, arrays)
        device_step = executor._buffer.views(layout)
        program = executor._program
        views = program._arena.views(device_step)
        calls = [partial(launch, views, device_step) for launch in program._launches]
        passes = [self._timer.each(calls) for _ in range(repeats + 1)][1:]  # the first warms up
        fastest = min(passes, key=sum)
        return StepTimes(step=name, ops=grouped(self._plan, fastest))


def grouped(plan: Plan, seconds: list[float]) -> list[OpTime]:
    """Seconds of each of the plan's ops added up by name, the longest first."""
    found: dict[str, list[tuple[float, int]]] = {}
    for op, spent in zip(plan.ops, seconds, strict=True):
        found.setdefault(op_name(op), []).append((spent, _weight_bytes(plan, op)))
    times = [
        OpTime(
            name=name,
            launches=len(parts),
            seconds=sum(spent for spent, _ in parts),
            weight_bytes=sum(size for _, size in parts),
        )
        for name, parts in found.items()
    ]
    return sorted(times, key=lambda time: -time.seconds)


def op_name(op: Op) -> str:
    """What ops of all layers that do the same are called: ``linear q_proj+k_proj+v_proj``."""
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(op).__name__).lower()
    if not isinstance(op, Linear | ExpertLinear):
        return kind
    names = [part.weight.removesuffix(".weight").split(".")[-1] for part in op.parts]
    return f"{kind} {'+'.join(names)}"


def _weight_bytes(plan: Plan, op: Op) -> int:
    """Bytes of the matrix that a product reads, of all experts if it is one of experts; nothing for
    other ops, which read little."""
    if not isinstance(op, Linear | ExpertLinear):
        return 0
    rows = sum(math.prod(plan.weights[part.weight].shape[:-1]) for part in op.parts)
    if op.scheme is not None:
        return op.scheme.nbytes(rows, op.k)
    return rows * op.k * (4 if plan.weight_dtype == "float32" else 2)
