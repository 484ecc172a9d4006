"""Memory of the sampler: allocated once, in sizes that a memory plan can know beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda.sampling.kernels.report import TOP
from penstock.backends.cuda.sampling.kernels.row import WIDTH
from penstock.backends.cuda.sampling.kernels.truncate import BRACKET, LEVELS
from penstock.sampling.ranges import MAX_LOGPROBS

MAX_IN_FLIGHT = 2
"""Launches whose outcome may be waited for at a time."""
REPORT_COLUMNS = TOP.value + MAX_LOGPROBS
TOPS = 1 << (MAX_LOGPROBS - 1).bit_length()
"""Room for the largest logits of a chunk: a power of two."""
_LISTS = 4
"""Lists of a launch's plan that a job may be in: adjusted, drawn, counted, reported."""


@dataclass(frozen=True)
class Sizes:
    """What the sampler's memory depends on."""

    vocab: int
    rows: int
    """Maximum number of jobs in one launch."""
    batch: int
    """Number of jobs processed at once, of those whose options change the logits or truncate the
    vocabulary."""
    chunk: int
    """Number of logits that one program handles: a power of two."""

    @property
    def chunks(self) -> int:
        return -(-self.vocab // self.chunk)

    @property
    def bytes(self) -> int:
        """Device memory, without what single requests take (``DeviceSampleState``)."""
        nowhere = torch.device("meta")
        return Scratch(self, nowhere).nbytes + MAX_IN_FLIGHT * LaunchBuffers(self, nowhere).nbytes


class Scratch:
    """Device memory in which kernels of a launch leave what others read; all launches share it."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        rows, batch, chunks = sizes.rows, sizes.batch, sizes.chunks
        stride = -(-sizes.vocab // 16) * 16  # for which Triton compiles faster code
        self.adjusted = empty(torch.float32, batch, stride)
        self.maxima = empty(torch.float32, batch, chunks)
        self.winners = empty(torch.int32, batch, chunks)
        self.hits = empty(torch.int32, batch, LEVELS.value, chunks)
        self.sums = empty(torch.int64, batch, LEVELS.value, chunks)
        self.brackets = empty(torch.int64, batch, BRACKET.value)
        self.candidates = empty(torch.int32, batch, stride)
        self.weight_keys = empty(torch.int32, batch, stride)
        self.logit_keys = empty(torch.int32, batch, stride)
        self.report_sums = empty(torch.int64, rows, chunks)
        self.report_ranks = empty(torch.int32, rows, chunks)
        self.report_tops = empty(torch.int64, rows, chunks, TOPS)

    @property
    def nbytes(self) -> int:
        tensors: list[Tensor] = list(vars(self).values())
        return sum(tensor.nbytes for tensor in tensors)


class LaunchBuffers:
    """What one launch sends and brings back, on the device and in pinned host memory.

    The tensors lie on the device. ``jobs`` has the records and ``order`` the lists of jobs, both
    int64. ``tokens`` and ``errors`` (int32), ``model_peaks`` (the largest of each job's row as the
    model made it) and ``peaks`` (as options left it, float32) are ``[rows]``, and ``reports`` int64
    is ``[rows, REPORT_COLUMNS]``.
    """

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        on_gpu, rows, records = device.type == "cuda", sizes.rows, sizes.rows * WIDTH.value
        self._sent = torch.empty(records + rows * _LISTS, dtype=torch.int64, device=device)
        self._chosen = torch.empty((2, rows), dtype=torch.int32, device=device)
        self._peaks = torch.empty((2, rows), dtype=torch.float32, device=device)
        self.reports = torch.empty((rows, REPORT_COLUMNS), dtype=torch.int64, device=device)
        self.jobs, self.order = self._sent[:records], self._sent[records:]
        self.tokens, self.errors = self._chosen.unbind()
        self.model_peaks, self.peaks = self._peaks.unbind()
        self._host = torch.zeros(self._sent.shape, dtype=torch.int64, pin_memory=on_gpu)
        self._host_chosen = torch.empty_like(self._chosen, device="cpu", pin_memory=on_gpu)
        self._host_reports = torch.empty_like(self.reports, device="cpu", pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None
        self.launch = -1
        """The number of the launch that uses them."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(t.nbytes for t in (self._sent, self._chosen, self._peaks, self.reports))

    @property
    def records(self) -> NDArray[np.int64]:
        """``[rows, WIDTH]`` in host memory, to be filled before :meth:`send`."""
        size = self.jobs.numel()
        records: NDArray[np.int64] = self._host[:size].numpy().reshape(-1, WIDTH.value)
        return records

    def send(self, num_jobs: int, order: Sequence[int]) -> None:
        """Queue the copies of records and of lists of jobs to the device."""
        first = self.jobs.numel()
        self._host.numpy()[first : first + len(order)] = order
        for part in (slice(num_jobs * WIDTH.value), slice(first, first + len(order))):
            self._sent[part].copy_(self._host[part], non_blocking=True)

    def copy_back(self, num_reports: int) -> None:
        """Queue the copies of what was chosen and reported to the host."""
        self._host_chosen.copy_(self._chosen, non_blocking=True)
        if num_reports:
            self._host_reports[:num_reports].copy_(self.reports[:num_reports], non_blocking=True)
        if self._event is not None:
            self._event.record()

    def wait(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return tokens and error codes ``[2, rows]``, and reports, once they are on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._host_chosen.numpy(), self._host_reports.numpy()


def queue_copy(array: NDArray[Any], to: Tensor) -> None:
    """Queue a copy to the device; from pageable memory it would wait for what is queued before."""
    tensor = torch.from_numpy(array)
    if to.device.type == "cuda":
        tensor = tensor.pin_memory()
    to.copy_(tensor, non_blocking=True)


def device_copy(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return a copy on the device, queued as :func:`queue_copy` does."""
    copy = torch.empty(array.shape, dtype=torch.from_numpy(array).dtype, device=device)
    queue_copy(array, copy)
    return copy
