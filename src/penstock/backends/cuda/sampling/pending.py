"""The outcome of a launch of the sampler: on the device at once, on the host when waited for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cuda.sampling.kernels import report as columns
from penstock.backends.cuda.sampling.kernels import row
from penstock.backends.cuda.sampling.memory import MAX_IN_FLIGHT, LaunchBuffers
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.sampler import NON_FINITE, Sampled
from penstock.sampling.logprobs import NO_TOKEN_LEFT, report

_ERRORS = {
    row.NOT_A_NUMBER.value: NON_FINITE.format(what="NaN"),
    row.INFINITE.value: NON_FINITE.format(what="infinite"),
    row.ONLY_NEGATIVE_INFINITE.value: NON_FINITE.format(what="only negative infinite"),
    row.NO_TOKEN_LEFT.value: NO_TOKEN_LEFT,
}


class PendingSample:
    """A launch that has been queued on the device.

    ``token_ids`` and ``errors`` (0: none) are int32 ``[n]`` on the device, for kernels queued
    after it; a job with an error has token 0, so that these find a valid id. They are overwritten
    two launches later, and :meth:`wait` must have been called by then.
    """

    def __init__(self, buffers: LaunchBuffers, num_jobs: int, reported: Mapping[int, int]) -> None:
        """``reported``: how many of the largest logits are reported, by job, in the order of the
        reports."""
        self.token_ids = buffers.tokens[:num_jobs]
        self.errors = buffers.errors[:num_jobs]
        self._buffers = buffers
        self._launch = buffers.launch
        self._reported = reported
        self._sampled: Sampled | None = None

    def wait(self) -> Sampled:
        """Return the outcome, once the device has it; it calls no job ``not_plain``."""
        if self._sampled is None:
            if self._buffers.launch != self._launch:
                raise RuntimeError(f"a launch must be waited for within {MAX_IN_FLIGHT} launches")
            chosen, reports = self._buffers.wait()
            tokens: list[int] = chosen[0, : len(self.token_ids)].tolist()
            codes = chosen[1, : len(tokens)]
            errors = {i: _ERRORS[int(codes[i])] for i in np.flatnonzero(codes).tolist()}
            logprobs = {
                i: _decode(tokens[i], entry, count)
                for (i, count), entry in zip(self._reported.items(), reports, strict=False)
                if i not in errors
            }
            self._sampled = Sampled(tokens, errors, logprobs)
        return self._sampled


def collect(launches: Iterable[PendingSample]) -> Sampled:
    """Wait for launches one after the other, and return their jobs as those of one."""
    whole = Sampled([], {}, {})
    for launch in launches:
        part, start = launch.wait(), len(whole.token_ids)
        whole.token_ids.extend(part.token_ids)
        whole.errors.update({start + i: error for i, error in part.errors.items()})
        whole.logprobs.update({start + i: entry for i, entry in part.logprobs.items()})
    return whole


def _decode(token_id: int, entry: NDArray[np.int64], count: int) -> TokenLogprobs:
    """Return the log-probabilities that a row of ``reports`` makes."""
    logit, peak = entry[[columns.LOGIT.value, columns.PEAK.value]].astype(np.int32)
    top = entry[columns.TOP.value : columns.TOP.value + count]
    top = top[top != columns.LEAST.value]  # a vocabulary may have fewer tokens
    keys = (top >> 32).astype(np.int32)
    logits = (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(np.float32)
    return report(
        token_id,
        float(logit.view(np.float32)),
        int(entry[columns.RANK.value]),
        float(peak.view(np.float32)),
        int(entry[columns.TOTAL.value]),
        (0xFFFFFFFF - (top & 0xFFFFFFFF)).tolist(),
        logits.tolist(),
    )
