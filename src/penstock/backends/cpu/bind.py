"""Bind a plan to the native runtime: place buffers, append ops, pack weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from penstock.backends.cpu.adapters import AdapterTables
from penstock.backends.cpu.append import append
from penstock.backends.cpu.arrays import DTYPES
from penstock.backends.cpu.binder import Binder
from penstock.backends.cpu.executor import CpuExecutor, ResultViews
from penstock.backends.cpu.interface import NativeExecutor, NativeModule
from penstock.backends.cpu.kv_pages import KvPages
from penstock.backends.cpu.native import load
from penstock.backends.cpu.regions import NativeRegions
from penstock.backends.cpu.state_slots import StateSlots
from penstock.backends.cpu.tune import LEAST_BYTES, ProductTuner, circumstances
from penstock.backends.cpu.turned import as_native
from penstock.backends.fills import fill_all
from penstock.cache.geometry import BLOCK_SIZE
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.interface.collective import RankSeat
from penstock.interface.executor import Limits
from penstock.interface.weights import PackedWeights, WeightSource
from penstock.plan.memory import MemoryPlan, plan_memory
from penstock.plan.ops import AdapterDown, AdapterUp, BufferName
from penstock.plan.plan import Plan

_TRIED_POSITIONS: Final = 64
"""What an executor refuses does not depend on their number, and tables of rotations do."""


_STEPS_AHEAD: Final = 2
"""The KV cache's pages are cleared for at least so many of the longest steps ahead of what is
written.
(Prompts of 512 tokens into blocks that were never used, 0.3 s apart, Qwen3 0.6B's shape in int8,
two threads of Zen 4: 0.71 s, and 0.79 where each step clears its own.)"""


_PUT_BYTES: Final = 512 << 20
"""The same where blocks are put into the cache between steps, many at once: as much as is read
ahead for sequences that wait, before the engine's first step. (11 blocks of SmolLM2 135M, 8 MB, in
a virtual machine: 1 ms of a core where their pages are clear, and 36 to 45 ms where 10 to 15 huge
ones were not.)"""


def bind(
    plan: Plan,
    weights: WeightSource | PackedWeights,
    limits: Limits,
    module: NativeModule | None = None,
    seat: RankSeat | None = None,
) -> CpuExecutor:
    """Return an executor of ``plan``, fused or not; ``module`` defaults to this machine's best, and
    ``seat`` is given where the plan is one rank's.

    Weights are read once each, in the order of the ops, and copied into the layout of the kernels,
    or restored in that layout; no array of ``weights`` is kept. Raises ConfigError where there is
    no native module, where the plan needs what no native kernel does, and where memory does not
    suffice; WeightError and ArtifactError where ``weights`` does.
    """
    module = module or load()
    try:
        plan = as_native(plan)
        memory = plan_memory(plan, limits.max_tokens, limits.max_selected_rows)
        native = _native_executor(plan, limits, module, memory.total_bytes, seat=seat)
        if limits.num_blocks and detect().numa_nodes == 1:
            # While weights are read: an engine that is busy from the start has no idle time for it.
            native.clear_pages_ahead(_blocks_ahead(plan, limits))
        binder = Binder(plan, native)
        adapters = _append_all(binder, memory)
        packed = _fill(binder, weights)
        results = _results(binder)
    except ValueError as error:
        raise ConfigError(
            f"the cpu backend cannot run this model as asked: {error}; "
            "choose the slow NumPy backend with --backend reference"
        ) from error
    except MemoryError as error:
        kv_bytes = limits.num_blocks * plan.kv_groups.page_bytes
        states = StateSlots.of(plan.state_layers, plan.state_dtype, limits.state_log)
        kv_bytes += limits.num_states * states.slot_bytes
        cached = kv_bytes > memory.total_bytes
        lower = "kv_cache_bytes" if cached else "max_num_batched_tokens or max_num_seqs"
        raise ConfigError(
            f"the system has not enough memory for the packed weights, {kv_bytes / 2**30:.2f} GiB "
            f"of KV cache and states and {memory.total_bytes / 2**30:.2f} GiB of activations; "
            f"lower {lower}"
        ) from error
    return CpuExecutor(
        native,
        module.isa,
        limits.num_blocks,
        results,
        packed,
        _tuner(binder, limits.threads),
        plan.feature_size,
        binder.rope_tables,
        adapters,
    )


def refusal(plan: Plan) -> str | None:
    """Say why no native executor runs ``plan``, fused or not; None if one does.

    The ops are appended to an executor for steps of one token, whose weights take no memory. None
    also where there is no native module, as :func:`bind` says so.
    """
    try:
        module = load()
    except ConfigError:
        return None
    limits = Limits(1, max_tokens=1, max_logit_rows=1, max_sequences=1, threads=1, num_states=1)
    try:
        plan = as_native(replace(plan, max_positions=min(plan.max_positions, _TRIED_POSITIONS)))
        memory = plan_memory(plan, limits.max_tokens, limits.max_selected_rows)
        native = _native_executor(plan, limits, module, memory.total_bytes, trial=True)
        try:
            _append_all(Binder(plan, native), memory)
        finally:
            native.close()
    except ValueError as error:
        return str(error)
    except MemoryError:  # whether there is enough is decided where it is divided
        return None
    return None


def _blocks_ahead(plan: Plan, limits: Limits) -> int:
    """How many blocks behind what was written have their pages cleared."""
    of_steps = _STEPS_AHEAD * -(-limits.max_tokens // BLOCK_SIZE) * len(plan.kv_groups)
    put = _PUT_BYTES // plan.kv_groups.page_bytes if limits.blocks_are_put else 0
    return min(max(of_steps, put), limits.num_blocks)


def _native_executor(
    plan: Plan,
    limits: Limits,
    module: NativeModule,
    arena_bytes: int,
    trial: bool = False,
    seat: RankSeat | None = None,
) -> NativeExecutor:
    """Return an executor without ops, with its threads, its arena and its KV cache, and in its
    group of ranks."""
    pages = KvPages.of(plan)
    crowded = max(limits.threads, 0 if seat is None else seat.threads) > detect().room
    states = StateSlots.of(plan.state_layers, plan.state_dtype, limits.state_log)
    native = module.Executor(
        threads=limits.threads,
        cpus=list(limits.cpus),
        crowded=crowded,
        num_blocks=limits.num_blocks,
        max_tokens=limits.max_tokens,
        # One bound for rows with logits and for those whose hidden states alone are returned: the
        # logits that no step uses are never touched, and take no memory.
        max_logits=limits.max_selected_rows,
        max_sequences=limits.max_sequences,
        max_positions=plan.max_positions,
        vocabulary=plan.spec.vocab_size,
        arena_bytes=arena_bytes,
        kv_elem=plan.kv_dtype,
        kv_groups=len(plan.kv_groups),
        kv_parts=pages.parts,
        kv_part_bytes=pages.part_bytes,
        kv_layers=list(pages.layers),
        state_slots=limits.num_states if plan.state_layers else 0,
        state_log=limits.state_log,
        state_bytes=states.slot_bytes,
        state_elem=plan.state_dtype,
        state_layers=list(states.layers),
        trial=trial,
    )
    if seat is not None:
        native.join_ranks(
            fd=seat.segment,
            rank=seat.collective.rank,
            world=seat.collective.world,
            slot_bytes=seat.slot_bytes,
            crowded=crowded,
        )
    return native


def _append_all(binder: Binder, memory: MemoryPlan) -> AdapterTables | None:
    """Place the plan's buffers in the arena, and append its ops; return what adapters are written
    to, where it has room for any."""
    for name, buffer in binder.plan.buffers.items():
        binder.buffers[name] = binder.native.add_buffer(
            memory.offsets[name],
            buffer.element,
            buffer.cols,
            memory.strides[name],
            str(buffer.rows),
        )
    for columns in binder.plan.key_columns:
        binder.native.set_key_columns(columns.layer, binder.key_columns(columns))
    adapters = AdapterTables.of(binder)
    for op in binder.plan.ops:
        match op:
            case AdapterDown() if adapters is not None:
                adapters.append_down(binder, op)
            case AdapterUp() if adapters is not None:
                adapters.append_up(binder, op)
            case _:
                append(binder, op)
    return adapters


def _fill(binder: Binder, weights: WeightSource | PackedWeights) -> NativeRegions:
    """Pack the weights, or restore them packed."""
    regions = NativeRegions(binder.native, tuple(binder.regions))
    try:
        if isinstance(weights, PackedWeights):
            weights.restore(regions)
        else:
            fill_all(binder.fills, weights)
    except BaseException:
        binder.native.close()  # now: handling the error may need the memory
        raise
    return regions


def _results(binder: Binder) -> ResultViews:
    plan = binder.plan

    def view(name: BufferName, dtype: DTypeLike) -> NDArray[Any]:
        return binder.native.view(binder.buffers[name]).view(dtype)

    if plan.logits is None or plan.argmax is None or plan.hidden is None:
        return ResultViews(
            logits=np.empty((0, 0), np.float32),
            argmax=np.empty(0, np.int32),
            hidden=None,
            taps=None,
            more_logits=(),
            leaving=tuple(
                (view(name, _dtype(plan, name)), plan.buffers[name].rows.times)
                for name in plan.leaving
            ),
        )
    rounded = plan.buffers[plan.hidden].element == "bfloat16"
    return ResultViews(
        logits=view(plan.logits, np.float32),
        argmax=view(plan.argmax, np.int32)[:, 0],
        hidden=view(plan.hidden, DTYPES["bfloat16" if rounded else "float32"]),
        taps=None if plan.taps is None else view(plan.taps, np.float32),
        more_logits=tuple(view(name, np.float32) for name in plan.more_logits),
    )


def _dtype(plan: Plan, name: BufferName) -> DTypeLike:
    element = plan.buffers[name].element
    return np.int32 if element == "int32" else DTYPES[element]


def _tuner(binder: Binder, threads: int) -> ProductTuner | None:
    """Return the tuner of the products that are large enough to gain from it; None if none is."""
    products = [p for p in binder.products() if p.matrix_bytes >= LEAST_BYTES]
    if not products:
        return None
    return ProductTuner(binder.native, products, circumstances(detect(), threads))
