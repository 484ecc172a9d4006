"""Queues the sampling kernels of a launch."""

from __future__ import annotations

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda.kernels import sample, sample_report, sample_top
from penstock.backends.cuda.sample_buffers import (
    REPORT_COLUMNS,
    TOPS,
    LaunchBuffers,
    Scratch,
    Sizes,
)
from penstock.backends.cuda.sample_plan import Batch, Span

_BLOCK = 128  # rows of a program that does little for each
_LIST_TILE = 256
_CANDIDATES_TILE = 2048  # 8 a thread
_WARPS = 8  # 16 of the 4096 logits of a chunk a thread
_EXACT = {"enable_fp_fusion": False}


class Launcher:
    """Scratch memory, and the kernels over it; launches follow each other on one stream."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._sizes = sizes
        self._scratch = Scratch(sizes, device)
        self._thresholds = torch.tensor(
            [sample_top.BELOW_PEAK, sample_top.WEIGHTS], dtype=torch.float32, device=device
        )
        self._chunks_block = triton.next_power_of_2(sizes.chunks)

    def adjusted_rows(self, count: int) -> NDArray[np.int64]:
        """Addresses of the logits of a batch whose options change them."""
        row_bytes = self._scratch.adjusted.stride(0) * 4
        return self._scratch.adjusted.data_ptr() + np.arange(count, dtype=np.int64) * row_bytes

    def run(
        self,
        buffers: LaunchBuffers,
        logits: Tensor,
        argmax: Tensor,
        num_jobs: int,
        batches: list[Batch],
    ) -> None:
        """Choose ``buffers.tokens`` of ``num_jobs`` jobs, whose records have been sent."""
        self.begin(buffers, logits, argmax, num_jobs)
        for batch in batches:
            if batch.adjusted.size:
                self._adjust(buffers, logits, batch.adjusted)
            if batch.weighed.size:
                self._weigh(buffers, batch.weighed)
            if batch.truncated.size:
                self._truncate(buffers, batch.truncated, batch.cut_by_rank)

    def begin(self, b: LaunchBuffers, logits: Tensor, argmax: Tensor, num_jobs: int) -> None:
        """The arg max of each job's row, its logit, and what is wrong with the row."""
        sample.begin[(triton.cdiv(num_jobs, _BLOCK),)](
            b.jobs,
            num_jobs,
            logits,
            logits.stride(0),
            argmax,
            b.tokens,
            b.errors,
            b.model_peaks,
            b.peaks,
            BLOCK=_BLOCK,
            num_warps=4,
        )

    def count(self, b: LaunchBuffers, jobs: Span) -> None:
        """Add the chosen tokens to the counts of these jobs' sequences."""
        sample.count_tokens[(triton.cdiv(jobs.size, _BLOCK),)](
            b.jobs,
            b.order,
            jobs.first,
            jobs.size,
            b.tokens,
            b.errors,
            BLOCK=_BLOCK,
            num_warps=4,
        )

    def report(self, b: LaunchBuffers, logits: Tensor, jobs: Span, count: int) -> None:
        """``buffers.reports`` of these jobs' tokens and of the ``count`` largest of their rows."""
        s, scratch = self._sizes, self._scratch
        parts = (scratch.report_sums, scratch.report_ranks, scratch.report_tops)
        source = (b.jobs, b.order, jobs.first, logits, logits.stride(0))
        sample_report.report_chunk[(jobs.size, s.chunks)](
            *source,
            b.tokens,
            b.errors,
            b.model_peaks,
            *parts,
            count,
            s.vocab,
            s.chunks,
            CHUNK=s.chunk,
            TOPS=TOPS,
            num_warps=_WARPS,
            **_EXACT,
        )
        sample_report.report_row[(jobs.size,)](
            *source,
            b.tokens,
            b.errors,
            b.model_peaks,
            *parts,
            b.reports,
            count,
            s.chunks,
            CHUNKS=self._chunks_block,
            TOPS=TOPS,
            COLUMNS=REPORT_COLUMNS,
            num_warps=4,
        )

    def _adjust(self, b: LaunchBuffers, logits: Tensor, jobs: Span) -> None:
        s, scratch = self._sizes, self._scratch
        sample.adjust[(jobs.size, s.chunks)](
            b.jobs,
            b.reals,
            b.order,
            jobs.first,
            logits,
            logits.stride(0),
            b.errors,
            scratch.adjusted,
            scratch.adjusted.stride(0),
            scratch.maxima,
            scratch.winners,
            s.vocab,
            s.chunks,
            CHUNK=s.chunk,
            TILE=_LIST_TILE,
            num_warps=_WARPS,
            **_EXACT,
        )
        sample.settle[(jobs.size,)](
            b.order,
            jobs.first,
            scratch.maxima,
            scratch.winners,
            b.tokens,
            b.errors,
            b.peaks,
            s.vocab,
            s.chunks,
            CHUNKS=self._chunks_block,
            num_warps=1,
        )

    def _weigh(self, b: LaunchBuffers, jobs: Span) -> None:
        s, scratch = self._sizes, self._scratch
        source = (b.jobs, b.reals, b.order, jobs.first, b.errors, b.peaks, scratch.sums)
        sample.weigh[(jobs.size, s.chunks)](
            *source, s.vocab, s.chunks, CHUNK=s.chunk, ALIGNED=b.aligned, num_warps=_WARPS, **_EXACT
        )
        sample.pick[(jobs.size,)](
            *source,
            b.tokens,
            s.vocab,
            s.chunks,
            CHUNK=s.chunk,
            CHUNKS=self._chunks_block,
            ALIGNED=b.aligned,
            num_warps=_WARPS,
            **_EXACT,
        )

    def _truncate(self, b: LaunchBuffers, jobs: Span, by_rank: Span) -> None:
        s, scratch = self._sizes, self._scratch
        stride = scratch.candidates.stride(0)
        rows = (b.jobs, b.reals, b.order, jobs.first, b.errors, b.peaks, self._thresholds)
        sample_top.levels[(jobs.size, s.chunks)](
            *rows,
            scratch.hits,
            scratch.sums,
            s.vocab,
            s.chunks,
            CHUNK=s.chunk,
            ALIGNED=b.aligned,
            num_warps=_WARPS,
            **_EXACT,
        )
        sample_top.gather[(jobs.size, s.chunks)](
            *rows,
            scratch.hits,
            scratch.sums,
            scratch.brackets,
            scratch.candidates,
            scratch.weight_keys,
            scratch.logit_keys,
            s.vocab,
            stride,
            s.chunks,
            CHUNK=s.chunk,
            CHUNKS=self._chunks_block,
            ALIGNED=b.aligned,
            num_warps=_WARPS,
            **_EXACT,
        )
        if by_rank.size:
            sample_top.cut_top_k[(by_rank.size,)](
                b.order,
                by_rank.first,
                b.errors,
                scratch.brackets,
                scratch.weight_keys,
                scratch.logit_keys,
                stride,
                TILE=_CANDIDATES_TILE,
                num_warps=_WARPS,
                **_EXACT,
            )
        sample_top.choose[(jobs.size,)](
            b.jobs,
            b.reals,
            b.order,
            jobs.first,
            b.errors,
            scratch.brackets,
            scratch.candidates,
            scratch.weight_keys,
            b.tokens,
            stride,
            TILE=_CANDIDATES_TILE,
            num_warps=_WARPS,
            **_EXACT,
        )
