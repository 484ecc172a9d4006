"""What a launch does for which jobs, and the kernels that it queues for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda.sampling.kernels import draw, report, truncate
from penstock.backends.cuda.sampling.memory import (
    REPORT_COLUMNS,
    TOPS,
    LaunchBuffers,
    Scratch,
    Sizes,
)
from penstock.backends.cuda.sampling.state import DeviceSampleState

_JOBS = {"BLOCK": 128, "num_warps": 4}
"""Constants of kernels that do little for each job."""
_LOGITS = {"num_warps": 8, "enable_fp_fusion": False}
"""Those of kernels that hold a chunk's 4096 logits, 16 a thread, or a tile of candidates; every
product and sum is rounded by itself, as the definition does."""
_CANDIDATES = {"TILE": 2048, **_LOGITS}
_LIST_TILE = 256


class Span(NamedTuple):
    """A list of jobs: a part of ``LaunchPlan.order``."""

    first: int
    size: int


_NONE = Span(0, 0)


class Batch(NamedTuple):
    """Jobs that use scratch memory at the same time."""

    adjusted: Span
    """All, if their options change their logits, else none."""
    weighed: Span
    """Jobs that draw from the whole vocabulary."""
    by_rank: Span
    """Jobs with a top-k; they come first in ``truncated``."""
    truncated: Span
    """Jobs with a top-k or a top-p."""


@dataclass
class LaunchPlan:
    """Lists of jobs; jobs that want the largest logit as it is are in none."""

    order: list[int] = field(default_factory=list)
    """All lists, one behind the other: indices of jobs, each in at most four lists."""
    batches: list[Batch] = field(default_factory=list)
    counted: Span = _NONE
    """Jobs whose tokens must be counted, for penalties."""
    reported: Span = _NONE
    """Jobs that want log-probabilities."""

    @classmethod
    def of(cls, states: Sequence[DeviceSampleState], batch: int) -> LaunchPlan:
        """Plan a launch, in batches of at most ``batch`` jobs."""
        plan = cls()
        wanted = [i for i, state in enumerate(states) if not state.plain]
        if not wanted:
            return plan
        others: list[int] = []
        adjusted: list[int] = []
        for i in wanted:
            if states[i].changes_logits:
                adjusted.append(i)
            elif states[i].is_drawn:
                others.append(i)
        for jobs, change in ((others, False), (adjusted, True)):
            for start in range(0, len(jobs), batch):
                some = jobs[start : start + batch]
                drawn = [i for i in some if states[i].is_drawn]
                changed = plan._add(some) if change else _NONE
                weighed = plan._add([i for i in drawn if not states[i].truncates])
                cut = [i for i in drawn if states[i].truncates]
                by_rank = plan._add([i for i in cut if states[i].top_k])
                by_sum = plan._add([i for i in cut if not states[i].top_k])
                truncated = Span(by_rank.first, by_rank.size + by_sum.size)
                plan.batches.append(Batch(changed, weighed, by_rank, truncated))
        plan.counted = plan._add([i for i in adjusted if states[i].counts is not None])
        plan.reported = plan._add([i for i in wanted if states[i].logprobs is not None])
        return plan

    def jobs(self, span: Span) -> list[int]:
        return self.order[span.first : span.first + span.size]

    def _add(self, jobs: list[int]) -> Span:
        span = Span(len(self.order), len(jobs))
        self.order += jobs
        return span


class Launcher:
    """Queues kernels, which share scratch memory: launches follow each other on one stream."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._scratch = Scratch(sizes, device)
        self._thresholds = torch.tensor(
            [truncate.BELOW_PEAK, truncate.WEIGHTS], dtype=torch.float32, device=device
        )
        self._vocab = sizes.vocab
        self._chunks = sizes.chunks
        self._chunk = {"CHUNK": sizes.chunk, **_LOGITS}
        self._all_chunks = {"CHUNKS": triton.next_power_of_2(sizes.chunks)}

    def adjusted_rows(self, count: int) -> NDArray[np.int64]:
        """Return the addresses of the logits of a batch whose options change them."""
        row_bytes = self._scratch.adjusted.stride(0) * 4
        return self._scratch.adjusted.data_ptr() + np.arange(count, dtype=np.int64) * row_bytes

    def begin(self, b: LaunchBuffers, logits: Tensor, argmax: Tensor, num_jobs: int) -> None:
        """Take the arg max of each job's row, its logit, and what is wrong with the row."""
        peaks = (b.model_peaks, b.peaks)
        draw.begin[(triton.cdiv(num_jobs, _JOBS["BLOCK"]),)](
            b.jobs, num_jobs, logits, logits.stride(0), argmax, b.tokens, b.errors, *peaks, **_JOBS
        )

    def choose(self, b: LaunchBuffers, logits: Tensor, batches: Sequence[Batch]) -> None:
        """Choose the tokens of jobs that want more than the largest logit as it is."""
        aligned = logits.data_ptr() % 16 == 0 and logits.stride(0) * 4 % 16 == 0
        for batch in batches:
            if batch.adjusted.size:
                self._adjust(b, batch.adjusted, logits)
            if batch.weighed.size:
                self._draw(b, batch.weighed, aligned)
            if batch.truncated.size:
                self._draw_truncated(b, batch.truncated, batch.by_rank, aligned)

    def count(self, b: LaunchBuffers, jobs: Span) -> None:
        """Add the chosen tokens to the counts of these jobs' sequences."""
        draw.count_tokens[(triton.cdiv(jobs.size, _JOBS["BLOCK"]),)](
            *_listed(b, jobs), jobs.size, b.tokens, **_JOBS
        )

    def report(self, b: LaunchBuffers, logits: Tensor, jobs: Span, count: int) -> None:
        """Report these jobs' tokens and the ``count`` largest of their rows, in their order."""
        s = self._scratch
        parts = (s.report_sums, s.report_ranks, s.report_tops)
        rows = (*_listed(b, jobs), b.model_peaks, b.tokens, logits, logits.stride(0), *parts)
        report.report_chunk[(jobs.size, self._chunks)](
            *rows, count, self._vocab, self._chunks, **self._chunk, TOPS=TOPS
        )
        constants = {**self._all_chunks, "TOPS": TOPS, "COLUMNS": REPORT_COLUMNS}
        report.report_row[(jobs.size,)](
            *rows, b.reports, count, self._chunks, **constants, num_warps=4
        )

    def _adjust(self, b: LaunchBuffers, jobs: Span, logits: Tensor) -> None:
        s, sizes, listed = self._scratch, (self._vocab, self._chunks), _listed(b, jobs)
        largest, rows = (s.maxima, s.winners), (logits, logits.stride(0))
        changed = (s.adjusted, s.adjusted.stride(0))
        draw.adjust[(jobs.size, self._chunks)](
            *listed, *rows, *changed, *largest, *sizes, **self._chunk, TILE=_LIST_TILE
        )
        draw.take_largest[(jobs.size,)](
            *listed[1:], *largest, b.tokens, b.peaks, *sizes, **self._all_chunks, num_warps=1
        )

    def _draw(self, b: LaunchBuffers, jobs: Span, aligned: bool) -> None:
        rows, sizes = (*_listed(b, jobs), b.peaks, self._scratch.sums), (self._vocab, self._chunks)
        constants = {**self._chunk, "ALIGNED": aligned}
        draw.weigh[(jobs.size, self._chunks)](*rows, *sizes, **constants)
        draw.pick[(jobs.size,)](*rows, b.tokens, *sizes, **self._all_chunks, **constants)

    def _draw_truncated(self, b: LaunchBuffers, jobs: Span, by_rank: Span, aligned: bool) -> None:
        s, stride, listed = self._scratch, self._scratch.candidates.stride(0), _listed(b, jobs)
        rows = (*listed, b.peaks, self._thresholds, s.hits, s.sums)
        constants = {**self._chunk, "ALIGNED": aligned}
        truncate.levels[(jobs.size, self._chunks)](*rows, self._vocab, self._chunks, **constants)
        found = (s.brackets, s.candidates, s.weight_keys)
        sizes = (self._vocab, stride, self._chunks)
        truncate.gather[(jobs.size, self._chunks)](
            *rows, *found, s.logit_keys, *sizes, **self._all_chunks, **constants
        )
        if by_rank.size:
            keys = (s.brackets, s.weight_keys, s.logit_keys)
            truncate.cut_top_k[(by_rank.size,)](
                *_listed(b, by_rank)[1:], *keys, stride, **_CANDIDATES
            )
        truncate.choose[(jobs.size,)](*listed, *found, b.tokens, stride, **_CANDIDATES)


def _listed(b: LaunchBuffers, jobs: Span) -> tuple[Tensor, Tensor, int, Tensor]:
    """Arguments of every kernel that takes a list of jobs; some need no records."""
    return b.jobs, b.order, jobs.first, b.errors
