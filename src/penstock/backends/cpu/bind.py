"""Bind a plan to the native runtime: place buffers, append ops, pack weights."""

from __future__ import annotations

import numpy as np

from penstock.backends.cpu.append import append
from penstock.backends.cpu.binder import Binder
from penstock.backends.cpu.executor import CpuExecutor
from penstock.backends.cpu.interface import NativeModule
from penstock.backends.cpu.kv_pages import KvPages
from penstock.backends.cpu.native import load
from penstock.backends.cpu.pack import DTYPES, NativeRegions, pack
from penstock.backends.cpu.tune import LEAST_BYTES, ProductTuner, circumstances
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.interface.executor import Limits
from penstock.interface.weights import PackedWeights, WeightSource
from penstock.plan.memory import plan_memory
from penstock.plan.plan import Plan


def bind(
    plan: Plan,
    weights: WeightSource | PackedWeights,
    limits: Limits,
    module: NativeModule | None = None,
) -> CpuExecutor:
    """An executor of ``plan``, fused or not; ``module`` defaults to this machine's best.

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
        binder = Binder(plan, native)
        for name, buffer in plan.buffers.items():
            binder.buffers[name] = native.add_buffer(
                memory.offsets[name],
                buffer.element,
                buffer.cols,
                memory.strides[name],
                str(buffer.rows),
            )
        for op in plan.ops:
            append(binder, op)
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
