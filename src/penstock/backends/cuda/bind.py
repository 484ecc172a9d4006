"""Bind a fused plan to a GPU: place buffers, make each op's kernels, fill weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from triton.errors import TritonError

from penstock.backends.cuda.binder import Binder
from penstock.backends.cuda.buckets import Buckets
from penstock.backends.cuda.capability import Capability, capability_of
from penstock.backends.cuda.check import StepBounds
from penstock.backends.cuda.executor import CudaExecutor
from penstock.backends.cuda.failure import failed
from penstock.backends.cuda.group import Group
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.program import Arena, Program
from penstock.backends.cuda.sampling.memory import Sizes
from penstock.backends.cuda.sampling.sampler import DeviceSampler
from penstock.backends.cuda.warm_up import warm_rows
from penstock.backends.fills import Fill, fill_all
from penstock.cache.geometry import BLOCK_SIZE
from penstock.errors import ConfigError, first_line
from penstock.gpu import find_gpu
from penstock.hardware import detect
from penstock.interface.collective import RankSeat
from penstock.interface.executor import Limits
from penstock.interface.weights import PackedWeights, WeightSource
from penstock.plan.memory import plan_memory
from penstock.plan.plan import Plan

_SAMPLED_AT_ONCE = 64
"""Rows that need scratch of their vocabulary's size, 2 MiB a row with 2**17 tokens."""
_SAMPLED_LOGITS = 4096
"""Number of logits that one program of the sampling kernels handles."""


def bind(
    plan: Plan,
    weights: WeightSource | PackedWeights,
    limits: Limits,
    device: torch.device | None = None,
    seat: RankSeat | None = None,
) -> CudaExecutor:
    """An executor of ``plan``, which must be fused, on ``device`` (default: this machine's GPU).

    ``seat``: the place among ranks, where the plan is one's. All of them bind at once, each on a
    GPU of its own.

    Weights are read once each, in the order of the ops. Raises ConfigError where there is no GPU
    that serves, where the plan needs what no kernel does, and where memory does not suffice;
    WeightError where ``weights`` does; EngineDeadError where the GPU fails.
    """
    if isinstance(weights, PackedWeights):
        raise ConfigError("the cuda backend reads weights from a checkpoint alone")
    if device is None:
        gpu = find_gpu(detect().memory_available).require()
        device = torch.device("cpu") if gpu.interpreted else torch.device("cuda", 0)
    elif device.type != "cuda" and not INTERPRETED:
        raise ConfigError(f"GPU kernels cannot run on {device}; set TRITON_INTERPRET=1")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    capability = capability_of(device)
    group: Group | None = None
    if seat is not None:
        from penstock.backends.cuda.distributed_group import join  # which takes a while

        group = join(seat.collective, device, capability)
    try:
        with _left_on_error(group):
            executor, fills = assemble(plan, limits, device, capability, group)
            fill_all(fills, weights)
            executor.prepare(limits.trees)
    except ValueError as error:
        raise ConfigError(
            f"the cuda backend cannot run this model as asked: {error}; choose --backend cpu"
        ) from error
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU has not enough memory: {first_line(error)}; other programs may have taken "
            "some since it was divided: lower kv_cache_bytes, or end them (see nvidia-smi)"
        ) from error
    except (torch.AcceleratorError, TritonError) as error:
        raise failed(error, starting=True) from error
    return executor


@contextmanager
def _left_on_error(group: Group | None) -> Iterator[None]:
    """Leave the group if its executor cannot be made."""
    try:
        yield
    except BaseException:
        if group is not None:
            group.close()
        raise


def assemble(
    plan: Plan,
    limits: Limits,
    device: torch.device,
    capability: Capability,
    group: Group | None = None,
) -> tuple[CudaExecutor, Sequence[Fill]]:
    """An executor whose weights hold anything, and what fills them.

    It leaves the ``group``, in which ``plan`` is one rank's, when it is closed.

    On torch's ``meta`` device it takes no memory and its launches do nothing but name their kernels
    (``variants.py``), made for ``capability``. Raises ValueError where the plan needs what no
    kernel does.
    """
    binder = Binder(plan, limits, device, capability, group)
    for op in plan.ops:
        binder.append(op)
    memory = plan_memory(plan, limits.max_tokens, limits.max_logit_rows, limits.max_selected_rows)
    rows = warm_rows(binder.matrices, limits.max_tokens)
    # Records of samples are made and read on the host, also where nothing else is anywhere.
    sampled_on = torch.device("cpu") if device.type == "meta" else device
    executor = CudaExecutor(
        Program(binder.launches, Arena(plan, memory, device), plan),
        binder.attention,
        binder.caches,
        step_bounds(plan, limits),
        DeviceSampler(sampler_sizes(plan, limits), sampled_on),
        binder.winners,
        Buckets.of(limits),
        rows if group is None else group.same_rows(rows),
        device,
        group,
        binder.adapters,
        plan.kv_groups,
    )
    return executor, binder.fills


def step_bounds(plan: Plan, limits: Limits) -> StepBounds:
    """What a step of ``plan`` may hold within ``limits``."""
    return StepBounds(
        max_tokens=limits.max_tokens,
        max_sequences=limits.max_sequences,
        max_logit_rows=limits.max_logit_rows,
        max_selected_rows=limits.max_selected_rows,
        max_positions=plan.max_positions,
        # Sequences may share blocks, so that tables can be longer than the cache.
        max_block_ids=limits.max_sequences * -(-plan.max_positions // BLOCK_SIZE),
        num_blocks=limits.num_blocks,
        vocab_size=plan.spec.vocab_size,
        feature_size=plan.feature_size,
        groups=len(plan.kv_groups),
        adapters=plan.adapters,
    )


def sampler_sizes(plan: Plan, limits: Limits) -> Sizes:
    """Sizes of the sampler's buffers; a step samples one token per sequence."""
    assert plan.logits is not None, "a stage that is not the last samples nothing"
    return Sizes(
        vocab=plan.buffers[plan.logits].cols,
        rows=limits.max_sequences,
        batch=min(limits.max_sequences, _SAMPLED_AT_ONCE),
        chunk=_SAMPLED_LOGITS,
    )
