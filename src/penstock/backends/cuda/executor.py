"""Runs steps on a GPU, behind the protocol of ``interface/executor.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from penstock.backends.cuda.adapter_rows import AdapterRows
from penstock.backends.cuda.adapters import AdapterTables
from penstock.backends.cuda.attention import AttentionKernel
from penstock.backends.cuda.block_mover import DeviceBlocks
from penstock.backends.cuda.buckets import MOST_COPIES, Bucket, Buckets
from penstock.backends.cuda.cache import Cache
from penstock.backends.cuda.check import StepBounds
from penstock.backends.cuda.failure import FAILURES, failed
from penstock.backends.cuda.graphs import StepGraphs
from penstock.backends.cuda.group import Group
from penstock.backends.cuda.host_copy import HostCopy
from penstock.backends.cuda.kernels.placeholders import put_tokens
from penstock.backends.cuda.kernels.rows import copy_blocks, move_slots
from penstock.backends.cuda.pending_step import PendingStep
from penstock.backends.cuda.program import Program, Results
from penstock.backends.cuda.result import DeviceResult
from penstock.backends.cuda.sampling.memory import MAX_IN_FLIGHT
from penstock.backends.cuda.sampling.sampler import DeviceSampler
from penstock.backends.cuda.step import (
    DeviceStep,
    Layout,
    StepBuffer,
    arrays_of,
    pad_step,
    padding,
)
from penstock.backends.cuda.warm_up import warm_steps
from penstock.errors import ConfigError, first_line
from penstock.interface.draft_tree import MAX_ROWS
from penstock.interface.executor import Capabilities, Sampling, picked, run
from penstock.interface.step import Int32s, StepInput
from penstock.plan.kv_groups import KvGroups
from penstock.sampling.ranges import MAX_LOGPROBS

if TYPE_CHECKING:
    from penstock.backends.cuda.sampling.state import DeviceSampleState


class CudaExecutor:
    """Runs steps on one GPU, or interpreted on the CPU. Made by ``cuda.bind.bind``.

    A step's tokens are chosen on the device, where the next step, which the host submits meanwhile,
    finds them: nothing of sampling waits for the host.

    A step of few tokens is padded to a bucket and replayed from a CUDA graph, whether it decodes,
    verifies drafts or reads prompts; any other is launched op by op. Both run the same kernels, so
    the same bits come out.
    """

    capabilities = Capabilities(
        MAX_IN_FLIGHT, placeholders=True, draws_ahead=True, most_logprobs=MAX_LOGPROBS
    )
    packed = None
    tunable = None

    def __init__(
        self,
        program: Program,
        attention: Sequence[AttentionKernel],
        caches: Sequence[Cache],
        bounds: StepBounds,
        sampler: DeviceSampler,
        winners: Tensor,
        buckets: Buckets,
        warm_rows: Sequence[int],
        device: torch.device,
        group: Group | None = None,
        adapters: AdapterTables | None = None,
        kv_groups: KvGroups | None = None,
    ) -> None:
        """``winners``: ``kernels.rows.Argmax.winners`` of the program's logits; ``buckets``: of the
        steps that are captured; ``warm_rows``: rows of steps that use every kernel
        (``warm_up.warm_rows``); ``group``: the ranks that run the same steps; ``adapters``: those
        that the program reads; ``kv_groups``: which layers the ``caches`` are of, where blocks are
        to be copied."""
        self.num_blocks = bounds.num_blocks
        self._program: Program | None = program
        self._attention = tuple(attention)
        self._caches = tuple(caches)
        self._bounds = bounds
        self.sampler = sampler
        self._winners: Tensor | None = winners
        self._latest: DeviceResult | None = None
        self._chosen: Tensor | None = None  # what the last step chose, for the next to read
        self._device = device
        self.adapters = adapters
        self._adapter_rows = None if adapters is None else adapters.rows
        capacity = buffer_capacity(bounds, attention, self._adapter_rows)
        self._buffer = StepBuffer(capacity, device)
        self._warm_rows = tuple(warm_rows)
        self._buckets = buckets
        self._places: dict[Bucket, _Place] = {}
        self._results: dict[Bucket, Results] = {}
        self._graphs: StepGraphs | None = None
        self._group = group
        self._kv_groups = kv_groups
        self._blocks: DeviceBlocks | None = None

    @property
    def blocks(self) -> DeviceBlocks | None:
        """What copies blocks beside the steps: made, with memory of the device, when it is asked
        for first. None where other ranks have a part of each block."""
        if self._blocks is None and self._kv_groups and self._group is None:
            caches, number = self._caches, self.num_blocks
            self._blocks = DeviceBlocks.make(self._kv_groups, caches, number, self._device)
        return self._blocks

    @property
    def device(self) -> torch.device:
        return self._device

    def prepare(self, trees: bool = False) -> None:
        """Compile kernels and capture the graphs: no request waits for that. On a GPU only.

        ``trees``: also the kernels of steps with draft trees.

        Raises EngineDeadError where the GPU fails, ConfigError where it has too little memory or
        a kernel cannot be compiled for it.
        """
        if self._device.type != "cuda":
            return
        try:
            self.warm_up(trees)
            self._graphs = StepGraphs(shared=self._group is not None)
            for bucket in self._buckets:  # the largest first: smaller ones fit its memory
                self._capture(bucket, self._graphs)
            torch.cuda.synchronize(self._device)
        except torch.cuda.OutOfMemoryError as error:
            raise ConfigError(
                f"the GPU has too little memory for kernels and CUDA graphs: {first_line(error)}; "
                "lower kv_cache_bytes, or max_num_batched_tokens"
            ) from error
        except FAILURES as error:
            raise failed(error, starting=True) from error

    def warm_up(self, trees: bool = False) -> None:
        """Launch every kernel that steps can, which compiles it, and change nothing."""
        for step in warm_steps(self._warm_rows, self._bounds, trees):
            self._launch(step, attending=padding(0, 0, groups=self._bounds.groups))
        one = torch.zeros(1, dtype=torch.int32, device=self._device)
        put_tokens(one, one)
        self.sampler.warm_up()

    def submit(self, step: StepInput, sampling: Sampling | None = None) -> PendingStep:
        """Queue a step and its sampling; see ``interface.executor.Executor``.

        Of ``StepOutcome.result``, the host gets what is read. Raises EngineDeadError where the GPU
        fails, after which nothing runs.
        """
        if self._program is None:
            raise RuntimeError("the executor is closed")
        self._bounds.check(step, 0 if self._chosen is None else len(self._chosen))
        masks = None
        if sampling is not None and sampling.masks is not None:
            masks = sampling.masks.take().in_time
        try:
            results = self._start_in_order(step)
            if sampling is None:
                return PendingStep(None, result=self._result(step, results))
            logits, argmax = results.logits, results.argmax
            drawn = result = None
            if sampling.logits:
                result = self._result(step, results)
            else:
                # Its own sampler made them.
                states = cast("Sequence[DeviceSampleState]", sampling.states)
                drawn = self.sampler.launch(logits, argmax, sampling.rows, states, masks)
                self._chosen = drawn.token_ids
            reports = [
                self.sampler.launch_prompt(logits, argmax, each) for each in sampling.prompts
            ]
            hidden, features = picked(step, sampling, results.hidden, results.taps)
            return PendingStep(
                drawn,
                reports,
                None if hidden is None else HostCopy(hidden),
                None if features is None else HostCopy(features),
                result,
            )
        except FAILURES as error:
            raise failed(error) from error

    def run(self, step: StepInput) -> DeviceResult:
        """Submit a step from which nothing is drawn, and wait for it."""
        result = run(self, step)
        assert isinstance(result, DeviceResult)
        return result

    def close(self) -> None:
        """Free weights, cache and graphs, and with them all memory of the device.

        Results that were not read are lost; a launch that nobody waited for keeps at most its
        sampled tokens."""
        if self._graphs is not None:
            self._graphs.close()
        if self._latest is not None:
            self._latest.end()
        if self._blocks is not None:
            self._blocks.close()
        self._blocks = self._kv_groups = None
        self._graphs = self._program = self._chosen = self._latest = self._winners = None
        self.adapters = None
        self._caches = self._attention = ()
        self._results.clear()
        self._places.clear()
        self._buffer.close()
        self.sampler.close()
        if self._group is not None:
            self._group.close()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _result(self, step: StepInput, results: Results) -> DeviceResult:
        """What a step computes, as long as it lies there; its likeliest tokens are its choice."""
        assert self._winners is not None
        rows = len(step.logit_rows)
        self._latest = DeviceResult(results, self._winners, rows, len(step.hidden_rows))
        self._chosen = self._latest.on_device.argmax.reshape(-1)
        return self._latest

    def _start_in_order(self, step: StepInput) -> Results:
        """Queue a step behind the copies of blocks that it touches, and before those to come."""
        if self._blocks is None:
            return self._start(step)
        touched = self._blocks.before(step)
        results = self._start(step)
        if touched is not None:
            self._blocks.behind(touched)
        return results

    def _start(self, step: StepInput) -> Results:
        """Queue a step; rows of padding are behind those of the step."""
        if self._latest is not None:
            self._latest.end()
        if self._graphs is not None:
            bucket = self._buckets.holding(step)
            if bucket is not None:
                self._write_padded(step, bucket)
                self._graphs.replay(bucket)
                return self._results[bucket]
        return self._launch(step)

    def _launch(self, step: StepInput, attending: StepInput | None = None) -> Results:
        """Queue a step op by op; ``attending``: what attention does instead of the step."""
        assert self._program is not None
        attending = attending or step
        work = [kernel.plan_work(attending) for kernel in self._attention]
        lists = [] if self._adapter_rows is None else self._adapter_rows.plan(step)
        arrays = arrays_of(step, work, lists)
        layout = Layout.of([array.size for array in arrays], self._bounds.groups, len(lists))
        self._buffer.write(layout, arrays)
        device_step = self._buffer.views(layout, len(step.hidden_rows))
        self._before(step, device_step)
        return self._program.run(device_step)

    def _write_padded(self, step: StepInput, bucket: Bucket) -> DeviceStep:
        """Put a step, padded, where the graph of its bucket reads it; returns what that reads."""
        place = self._place(bucket)
        # Attention's work is planned of the step as it is: it has none for padding.
        work = [kernel.plan_work(step) for kernel in self._attention]
        lists = self._padded_lists(step, bucket)
        self._buffer.write(place.layout, arrays_of(pad_step(step, *bucket), work, lists))
        self._before(step, place.step)
        return place.step

    def _before(self, step: StepInput, there: DeviceStep) -> None:
        """Queue what comes before a step that was sent and is in no graph: tokens that the host
        does not know are put in, slots moved and blocks copied."""
        if self._chosen is not None and int(step.token_ids.min(initial=0)) < 0:
            put_tokens(there.token_ids, self._chosen)
        edited = len(step.slot_moves) or len(step.block_copies)
        for cache in self._caches if edited else ():
            for data in cache.arrays:
                move_slots(there.slot_moves, data)
                copy_blocks(there.block_copies[: len(step.block_copies)], data)

    def _capture(self, bucket: Bucket, graphs: StepGraphs) -> None:
        program = self._program
        assert program is not None
        bounds = self._bounds
        there = self._write_padded(padding(0, 0, bounds.feature_size, bounds.groups), bucket)

        def run(step: DeviceStep) -> None:
            self._results[bucket] = program.run(step)

        graphs.capture(bucket, run, there)

    def _padded_lists(self, step: StepInput, bucket: Bucket) -> Sequence[Int32s]:
        """The lists of the rows that have adapters, as long as any step of the bucket has them."""
        return [] if self._adapter_rows is None else self._adapter_rows.plan_padded(step, bucket)

    def _place(self, bucket: Bucket) -> _Place:
        """Where the arrays of a bucket lie, for good: its graph knows the addresses."""
        if bucket not in self._places:
            bounds = self._bounds
            idle = replace(
                padding(*bucket, bounds.feature_size, bounds.groups),
                block_copies=np.zeros((MOST_COPIES, 2), np.int32),
            )
            work = [np.empty(kernel.work_shape, np.int32) for kernel in self._attention]
            lists = self._padded_lists(idle, bucket)
            lengths = [array.size for array in arrays_of(idle, work, lists)]
            lengths[len(lengths) - bounds.groups :] = [bounds.max_block_ids] * bounds.groups
            layout = Layout.of(lengths, bounds.groups, len(lists))
            self._places[bucket] = _Place(layout, self._buffer.views(layout))
        return self._places[bucket]


class _Place(NamedTuple):
    """The steps of a bucket on the device."""

    layout: Layout
    step: DeviceStep


def buffer_capacity(
    bounds: StepBounds, attention: Sequence[AttentionKernel], adapters: AdapterRows | None
) -> int:
    """Integers that the arrays of any step take."""
    tokens, sequences = bounds.max_tokens, bounds.max_sequences
    work = [math.prod(kernel.work_shape) for kernel in attention]
    copies = 2 * max(bounds.num_blocks, MOST_COPIES)  # a bucket has room for those
    paths = min(tokens, sequences * MAX_ROWS) * MAX_ROWS
    cache = (copies, 2 * bounds.max_slot_moves, paths)
    lists = [] if adapters is None else adapters.most(bounds)
    others = (*cache, tokens * bounds.feature_size, *work, *lists)
    # A padded step may have as many sequences as tokens.
    lengths = (*[tokens] * 2, *[tokens + 1] * 2, bounds.max_selected_rows, *others)
    groups = [tokens, bounds.max_block_ids] * bounds.groups
    return Layout.of((*lengths, *groups)).size
