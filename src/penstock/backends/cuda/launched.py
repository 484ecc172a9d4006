"""A step that was queued on the device with its sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.base import Outcome, PromptReport
from penstock.backends.cuda.failure import gpu_failed
from penstock.backends.cuda.sample_outcome import Drawn, Reported


class FetchedRows:
    """Hidden states on their way to the host, read before what is queued later overwrites them."""

    def __init__(self, rows: Tensor) -> None:
        on_device = rows.device.type == "cuda"
        self._host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=on_device)
        self._host.copy_(rows, non_blocking=on_device)
        self._done = torch.cuda.Event() if on_device else None
        if self._done is not None:
            self._done.record()

    def wait(self) -> NDArray[np.float32]:
        """``[H, hidden size]``."""
        if self._done is not None:
            self._done.synchronize()
        array: NDArray[np.float32] = self._host.to(torch.float32).numpy()
        return array


class CudaLaunch:
    """``backends.base.Launched`` of one step: what it samples and reports, queued behind it."""

    def __init__(
        self, drawn: Drawn, reports: Sequence[Reported], hidden: FetchedRows | None = None
    ) -> None:
        self._drawn = drawn
        self._reports = tuple(reports)
        self._hidden = hidden

    def wait(self) -> Outcome:
        """Block until the device is done with the step. Raises EngineDeadError where it fails."""
        try:
            sampled = self._drawn.wait()
            reports = [_report(each) for each in self._reports]
            hidden = None if self._hidden is None else self._hidden.wait()
            return Outcome(sampled, reports, hidden)
        except RuntimeError as error:
            raise gpu_failed(error) from error


def _report(reported: Reported) -> PromptReport:
    entries, errors = reported.wait()
    return errors[min(errors)] if errors else entries
