"""Executors that compute on the host's processors: a step is over when it has been submitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import RequestError
from penstock.interface.adapters import AdapterMemory
from penstock.interface.blocks import BlockIO
from penstock.interface.executor import (
    Capabilities,
    Pending,
    PromptReport,
    PromptRows,
    Sampling,
    StepOutcome,
    picked,
)
from penstock.interface.mask import StepMasks, TokenMask
from penstock.interface.sampler import Sampled, Sampler, SamplingState
from penstock.interface.step import StepInput, StepResult
from penstock.interface.tuning import Tunable
from penstock.interface.weights import PackedRegions


class FinishedStep(msgspec.Struct, frozen=True, gc=False):
    """``interface.executor.Pending`` of a step that is over."""

    outcome: StepOutcome

    def wait(self) -> StepOutcome:
        return self.outcome


class HostExecutor(ABC):
    """Runs a step, then draws its tokens, while the caller waits.

    Masks are asked for when the logits are there: they are computed meanwhile.
    """

    capabilities = Capabilities(late_masks=True)
    num_blocks: int
    packed: PackedRegions | None = None
    tunable: Tunable | None = None
    adapters: AdapterMemory | None = None

    @abstractmethod
    def run(self, step: StepInput) -> StepResult:
        """Run one step. The results are views that the next step overwrites.

        Raises what ``Executor.submit`` does.
        """

    @property
    def blocks(self) -> BlockIO | None:
        """None: nothing reads and writes blocks."""
        return None

    @property
    @abstractmethod
    def sampler(self) -> Sampler[Any]: ...

    @abstractmethod
    def close(self) -> None: ...

    def submit(self, step: StepInput, sampling: Sampling | None = None) -> Pending:
        result = self.run(step)
        if sampling is None:
            return FinishedStep(StepOutcome(result=result))
        if sampling.masks is not None:
            sampled, late = self._draw_masked(result, sampling, sampling.masks.take())
        elif sampling.rows:
            sampled, late = self._draw(result, sampling.rows, sampling.states), _NONE
        else:
            sampled, late = _NOTHING, _NONE
        hidden = features = None
        if sampling.features or len(step.hidden_rows):
            assert result.hidden is not None
            hidden, features = picked(step, sampling, result.hidden, result.taps)
        return FinishedStep(
            StepOutcome(
                sampled,
                late,
                [self._report(result, each) for each in sampling.prompts]
                if sampling.prompts
                else (),
                hidden,
                features,
                result if sampling.logits else None,
            )
        )

    def _draw(
        self,
        result: StepResult,
        rows: Sequence[int],
        states: Sequence[SamplingState],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> Sampled:
        sampled = self.sampler.sample(result, rows, states, masks)
        for i in sampled.not_plain:
            if i not in sampled.errors:
                states[i].append(sampled.token_ids[i])
        return sampled

    def _draw_masked(
        self, result: StepResult, sampling: Sampling, taken: StepMasks
    ) -> tuple[Sampled, frozenset[int]]:
        rows, states, masks, late = sampling.rows, sampling.states, taken.masks, taken.late
        if not late:
            return self._draw(result, rows, states, masks), late
        timely = [i for i in range(len(rows)) if i not in late]
        sampled = self._draw(
            result,
            [rows[i] for i in timely],
            [states[i] for i in timely],
            None if masks is None else [masks[i] for i in timely],
        )
        return _spread(sampled, timely, len(rows)), late

    def _report(self, result: StepResult, wanted: PromptRows) -> PromptReport:
        rows = result.logits[wanted.first_row : wanted.first_row + len(wanted.targets)]
        try:
            return self.sampler.prompt_logprobs(rows, wanted.targets, wanted.num_top)
        except RequestError as error:
            return str(error)


_NOTHING, _NONE = Sampled([]), frozenset[int]()


def _spread(sampled: Sampled, places: list[int], count: int) -> Sampled:
    """What was drawn for some of ``count`` samples, by their places among all."""
    token_ids = [0] * count
    for place, token in zip(places, sampled.token_ids, strict=True):
        token_ids[place] = token
    return Sampled(
        token_ids,
        {places[i]: error for i, error in sampled.errors.items()},
        {places[i]: entry for i, entry in sampled.logprobs.items()},
    )
