"""What a launch of the sampler comes to: on the device at once, on the host when waited for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cuda.kernels import sample_jobs as jobs
from penstock.backends.cuda.kernels import sample_report
from penstock.backends.cuda.sample_buffers import LaunchBuffers
from penstock.backends.cuda.sample_state import DeviceSampleState
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.sampler import NON_FINITE, Sampled
from penstock.sampling.logprobs import NO_TOKEN_LEFT, report

_ERRORS = {
    jobs.NOT_A_NUMBER.value: NON_FINITE.format(what="NaN"),
    jobs.INFINITE.value: NON_FINITE.format(what="infinite"),
    jobs.ONLY_NEGATIVE_INFINITE.value: NON_FINITE.format(what="only negative infinite"),
    jobs.NO_TOKEN_LEFT.value: NO_TOKEN_LEFT,
}
MAX_IN_FLIGHT = 2
"""Launches whose outcome may be waited for at a time."""


class Drawn:
    """A launch that has been queued on the device.

    ``token_ids`` and ``errors`` (0: none) are int32 ``[n]`` on the device, for kernels queued
    after it; a row with an error has token 0, so that these find a valid id. They are overwritten
    two launches later, and :meth:`wait` must have been called by then.
    """

    def __init__(
        self,
        buffers: LaunchBuffers,
        states: Sequence[DeviceSampleState],
        reported: Sequence[int],
        advanced: bool,
    ) -> None:
        self.token_ids = buffers.tokens[: len(states)]
        self.errors = buffers.errors[: len(states)]
        self._buffers = buffers
        self._launch = buffers.launch
        self._states = states
        self._reported = reported
        self._advanced = advanced
        self._sampled: Sampled | None = None

    def wait(self) -> Sampled:
        """The outcome, once the device has it."""
        if self._sampled is None:
            if self._buffers.launch != self._launch:
                raise RuntimeError(f"a launch must be waited for within {MAX_IN_FLIGHT} launches")
            self._sampled = self._collect(*self._buffers.wait())
        return self._sampled

    def _collect(self, chosen: NDArray[np.int32], reports: NDArray[np.int64]) -> Sampled:
        tokens: list[int] = chosen[0, : len(self._states)].tolist()
        codes = chosen[1, : len(self._states)]
        errors = {i: _ERRORS[int(codes[i])] for i in np.flatnonzero(codes).tolist()}
        logprobs = {
            i: _decode(tokens[i], reports[at], self._states[i].logprobs or 0)
            for at, i in enumerate(self._reported)
            if i not in errors
        }
        if self._advanced:
            return Sampled(tokens, errors, logprobs)
        particular = [i for i, state in enumerate(self._states) if not state.plain]
        return Sampled(tokens, errors, logprobs, particular)


class Reported:
    """Log-probabilities of given tokens that have been queued on the device."""

    def __init__(self, part_size: int, token_ids: list[int], counts: list[int]) -> None:
        self.parts: list[LaunchBuffers] = []
        """Buffers of the queued parts: ``part_size`` tokens each, except that the last may have
        fewer."""
        self._part_size = part_size
        self._token_ids = token_ids
        self._counts = counts

    def wait(self) -> tuple[list[TokenLogprobs], dict[int, str]]:
        """Entries of the rows that are finite, and what is wrong with the others, by index."""
        arrived = [part.wait() for part in self.parts]
        entries: list[TokenLogprobs] = []
        errors: dict[int, str] = {}
        for i, (token, count) in enumerate(zip(self._token_ids, self._counts, strict=True)):
            part, at = divmod(i, self._part_size)
            chosen, reports = arrived[part]
            if chosen[1, at]:
                errors[i] = _ERRORS[int(chosen[1, at])]
            else:
                entries.append(_decode(token, reports[at], count))
        return entries, errors


def _decode(token_id: int, entry: NDArray[np.int64], count: int) -> TokenLogprobs:
    """The log-probabilities that a row of ``reports`` makes."""
    logit, peak = entry[[sample_report.LOGIT.value, sample_report.PEAK.value]].astype(np.int32)
    first = sample_report.TOP.value
    top = entry[first : first + count]
    top = top[top != sample_report.LEAST.value]  # a vocabulary may have fewer tokens
    keys = (top >> 32).astype(np.int32)
    logits = (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(np.float32)
    return report(
        token_id,
        float(logit.view(np.float32)),
        int(entry[sample_report.RANK.value]),
        float(peak.view(np.float32)),
        int(entry[sample_report.TOTAL.value]),
        (0xFFFFFFFF - (top & 0xFFFFFFFF)).tolist(),
        logits.tolist(),
    )
