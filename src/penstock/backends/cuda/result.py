"""A step's result on the device; the host copies what it reads, when it reads it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from penstock.backends.cuda.failure import FAILURES, failed
from penstock.backends.cuda.host_copy import HostCopy
from penstock.backends.cuda.program import Results
from penstock.interface.step import Float32s, Int32s, StepResult


class DeviceResult(StepResult):
    """The result of a step of which the host asked for the logits, and that may still be computed.

    Each row's arg max and the logit there come to the host on their own, in one copy of eight bytes
    a row: a greedy row needs no more. All else stays where it is (:attr:`on_device`, which a
    ``DeviceSampler`` reads), and each array is copied, whole, by the first who asks for it. Unless
    that was done, the next step overwrites it: who asks then gets a RuntimeError.
    """

    def __init__(self, results: Results, winners: Tensor, rows: int, hidden_rows: int) -> None:
        """``results`` and ``winners`` (``kernels.rows.Argmax``) of a step that was queued, of which
        the first ``rows`` are its rows of logits, and ``hidden_rows`` more hidden states.

        Waits for nothing. Raises RuntimeError where the GPU fails.
        """
        self.num_rows = rows
        selected = rows + hidden_rows
        self._results: Results | None = Results(
            results.logits[:rows],
            results.argmax[:rows],
            results.hidden[:selected],
            None if results.taps is None else results.taps[:selected],
            tuple(each[:rows] for each in results.more_logits),
        )
        self._has_taps = results.taps is not None
        self._copy = HostCopy(winners[:rows])
        self._winners: Int32s | None = None
        self._logits: Float32s | None = None
        self._hidden: Float32s | None = None
        self._taps: Float32s | None = None
        self._more_logits: tuple[Float32s, ...] | None = None

    @property
    def on_device(self) -> Results:
        """Views of the arena. Raises RuntimeError once the next step has begun."""
        if self._results is None:
            raise RuntimeError("a later step has overwritten what this one computed")
        return self._results

    def wait(self) -> Int32s:
        """Block until the step is done; returns each row's arg max and the bits of the logit
        there, ``[R, 2]``. Raises EngineDeadError where the GPU fails."""
        if self._winners is None:
            try:
                self._winners = self._copy.wait()
            except FAILURES as error:
                raise failed(error) from error
        return self._winners

    @property
    def argmax(self) -> Int32s:
        argmax: Int32s = self.wait()[:, 0]
        return argmax

    def peaks(self, rows: Int32s) -> Float32s:
        peaks: Float32s = self.wait()[rows, 1].view(np.float32)
        return peaks

    @property
    def logits(self) -> Float32s:
        if self._logits is None:
            self._logits = _on_host(self.on_device.logits)
        return self._logits

    @property
    def hidden(self) -> Float32s:
        if self._hidden is None:
            self._hidden = _on_host(self.on_device.hidden)
        return self._hidden

    @property
    def taps(self) -> Float32s | None:
        if self._taps is None and self._has_taps:
            taps = self.on_device.taps
            assert taps is not None
            self._taps = _on_host(taps)
        return self._taps

    @property
    def more_logits(self) -> tuple[Float32s, ...]:
        if self._more_logits is None:
            self._more_logits = tuple(_on_host(each) for each in self.on_device.more_logits)
        return self._more_logits

    def end(self) -> None:
        """The next step begins: what was not copied is lost."""
        self._results = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_rows} rows)"


def _on_host(rows: Tensor) -> Float32s:
    try:
        array: Float32s = rows.to(torch.float32).cpu().numpy()
    except FAILURES as error:
        raise failed(error) from error
    # Interpreted, the device's memory is the host's, and the next step writes there.
    return array.copy() if rows.device.type == "cpu" else array
