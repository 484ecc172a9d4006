"""Memory of the sampler: allocated once, of sizes that a memory plan can know beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backends.cuda.kernels.sample_jobs import WIDTH
from penstock.backends.cuda.kernels.sample_report import TOP
from penstock.backends.cuda.kernels.sample_top import BRACKET, LEVELS
from penstock.sampling.params import MAX_LOGPROBS

REPORT_COLUMNS = TOP.value + MAX_LOGPROBS
TOPS = 1 << (MAX_LOGPROBS - 1).bit_length()
_LISTS = 4
"""Lists of jobs that a job may be in: adjusted, drawn, counted, reported."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """What the sampler's memory depends on."""

    vocab: int
    rows: int
    """Maximum number of rows in one launch."""
    batch: int
    """Number of rows processed at once, of those whose options change the logits or truncate the
    vocabulary."""
    chunk: int
    """Number of logits that one program handles: a power of two."""

    @property
    def chunks(self) -> int:
        return -(-self.vocab // self.chunk)

    @property
    def stride(self) -> int:
        """Length of a scratch row in elements: a multiple of 16, for which Triton compiles faster
        code."""
        return -(-self.vocab // 16) * 16

    @property
    def bytes(self) -> int:
        """Device memory, without what single requests take (``DeviceSampleState``)."""
        tensors = [*_scratch(self).values(), *2 * list(_launch(self).values())]
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in tensors)


def _scratch(s: Sizes) -> dict[str, tuple[Shape, torch.dtype]]:
    return {
        "adjusted": ((s.batch, s.stride), torch.float32),
        "maxima": ((s.batch, s.chunks), torch.float32),
        "winners": ((s.batch, s.chunks), torch.int32),
        "hits": ((s.batch, LEVELS.value, s.chunks), torch.int32),
        "sums": ((s.batch, LEVELS.value, s.chunks), torch.int64),
        "brackets": ((s.batch, BRACKET.value), torch.int64),
        "candidates": ((s.batch, s.stride), torch.int32),
        "weight_keys": ((s.batch, s.stride), torch.int32),
        "logit_keys": ((s.batch, s.stride), torch.int32),
        "report_sums": ((s.rows, s.chunks), torch.int64),
        "report_ranks": ((s.rows, s.chunks), torch.int32),
        "report_tops": ((s.rows, s.chunks, TOPS), torch.int64),
    }


def _launch(s: Sizes) -> dict[str, tuple[Shape, torch.dtype]]:
    return {
        "sent": ((s.rows * (WIDTH.value + _LISTS),), torch.int64),
        "chosen": ((2, s.rows), torch.int32),
        "peaks": ((2, s.rows), torch.float32),
        "reports": ((s.rows, REPORT_COLUMNS), torch.int64),
    }


class Scratch:
    """What kernels of a launch hand to each other; launches follow each other and share it."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        made = {
            name: torch.empty(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in _scratch(sizes).items()
        }
        self.adjusted = made["adjusted"]
        self.maxima = made["maxima"]
        self.winners = made["winners"]
        self.hits = made["hits"]
        self.sums = made["sums"]
        self.brackets = made["brackets"]
        self.candidates = made["candidates"]
        self.weight_keys = made["weight_keys"]
        self.logit_keys = made["logit_keys"]
        self.report_sums = made["report_sums"]
        self.report_ranks = made["report_ranks"]
        self.report_tops = made["report_tops"]


class LaunchBuffers:
    """What one launch sends and brings back, on the device and in pinned host memory."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        made = {
            name: torch.empty(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in _launch(sizes).items()
        }
        self._sent = made["sent"]
        self._chosen = made["chosen"]
        size = sizes.rows * WIDTH.value
        self.jobs = self._sent[:size]
        """Records of jobs, ``kernels/sample_jobs.py``; ``reals`` is the same memory."""
        self.reals = self.jobs.view(torch.float64)
        self.order = self._sent[size:]
        """Lists of jobs."""
        self.tokens = self._chosen[0]
        self.errors = self._chosen[1]
        self.model_peaks = made["peaks"][0]
        """The largest of each job's row as the model made it; ``peaks``, as options left it."""
        self.peaks = made["peaks"][1]
        self.reports = made["reports"]
        self._host = torch.zeros(self._sent.shape, dtype=torch.int64, pin_memory=on_gpu)
        self._host_chosen = torch.empty_like(self._chosen, device="cpu", pin_memory=on_gpu)
        self._host_reports = torch.empty_like(self.reports, device="cpu", pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None
        self.aligned = False
        """Whether every row of logits starts at a multiple of 16 bytes."""
        self.launch = -1
        """Which launch uses them."""

    @property
    def records(self) -> NDArray[np.int64]:
        """``[rows, WIDTH]``, to be filled before :meth:`send`."""
        size = self.jobs.numel()
        records: NDArray[np.int64] = self._host[:size].numpy().reshape(-1, WIDTH.value)
        return records

    def send(self, num_jobs: int, order: Sequence[int]) -> None:
        """Queue the copies of records and of lists of jobs to the device."""
        first = self.jobs.numel()
        self._host.numpy()[first : first + len(order)] = order
        for part in (slice(num_jobs * WIDTH.value), slice(first, first + len(order))):
            self._sent[part].copy_(self._host[part], non_blocking=True)

    def fetch(self, num_reports: int) -> None:
        """Queue the copies of what was chosen and reported to the host."""
        self._host_chosen.copy_(self._chosen, non_blocking=True)
        if num_reports:
            self._host_reports[:num_reports].copy_(self.reports[:num_reports], non_blocking=True)
        if self._event is not None:
            self._event.record()

    def wait(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Tokens and error codes ``[2, rows]`` and reports, once they are here."""
        if self._event is not None:
            self._event.synchronize()
        return self._host_chosen.numpy(), self._host_reports.numpy()
