"""A step that was queued on the device, with what the host wants of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from penstock.backends.cuda.failure import FAILURES, failed
from penstock.backends.cuda.host_copy import HostCopy
from penstock.backends.cuda.result import DeviceResult
from penstock.backends.cuda.sampling.pending import PendingSample, collect
from penstock.interface.executor import PromptReport, StepOutcome
from penstock.interface.sampler import Sampled


class PendingStep:
    """``interface.executor.Pending`` of one step: what is sampled and reported, behind it."""

    def __init__(
        self,
        drawn: PendingSample | None,
        reports: Sequence[Sequence[PendingSample]] = (),
        hidden: HostCopy | None = None,
        features: HostCopy | None = None,
        result: DeviceResult | None = None,
    ) -> None:
        self._drawn = drawn
        self._reports = tuple(reports)
        self._hidden = hidden
        self._features = features
        self._result = result

    def wait(self) -> StepOutcome:
        """Block until the device is done with the step. Raises EngineDeadError where it fails."""
        try:
            if self._result is not None:
                self._result.wait()
            sampled = Sampled([]) if self._drawn is None else self._drawn.wait()
            return StepOutcome(
                sampled=sampled,
                prompts=[_report(each) for each in self._reports],
                hidden=_rows(self._hidden),
                features=_rows(self._features),
                result=self._result,
            )
        except FAILURES as error:
            raise failed(error) from error


def _rows(copy: HostCopy | None) -> NDArray[Any] | None:
    return None if copy is None else copy.wait(torch.float32)


def _report(launches: Sequence[PendingSample]) -> PromptReport:
    rows = collect(launches)
    return rows.errors[min(rows.errors)] if rows.errors else list(rows.logprobs.values())
