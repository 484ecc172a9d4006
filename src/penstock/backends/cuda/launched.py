"""A step that was queued on the device with its sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.backends.cuda.failure import FAILURES, failed
from penstock.backends.cuda.fetched import FetchedRows
from penstock.backends.cuda.sample_outcome import Drawn, Reported
from penstock.interface.executor import Outcome, PromptReport


class CudaLaunch:
    """``interface.executor.Launched`` of one step: what it samples and reports, behind it."""

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
            hidden = None if self._hidden is None else self._hidden.wait(torch.float32)
            return Outcome(sampled, reports, hidden)
        except FAILURES as error:
            raise failed(error) from error


def _report(reported: Reported) -> PromptReport:
    entries, errors = reported.wait()
    return errors[min(errors)] if errors else entries
