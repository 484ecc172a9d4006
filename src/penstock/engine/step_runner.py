"""Runs scheduled steps and has their tokens chosen: one after the other, or overlapping by one."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from penstock.engine.constraints import Constraints
from penstock.engine.masks import NO_MASKS
from penstock.engine.prompt_logprobs import PromptReports, WantedRows
from penstock.engine.step_builder import build_step_input
from penstock.errors import RequestError
from penstock.interface.executor import (
    Executor,
    Launched,
    OverlappingExecutor,
    PromptReport,
    PromptRows,
)
from penstock.interface.mask import TokenMask
from penstock.interface.sampler import Sampled
from penstock.interface.step import StepResult
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.scheduler import Scheduler
from penstock.speculate.typical import Typical
from penstock.speculate.verify import Verified, verify

_PATIENCE, _LEAST_PATIENCE_S = 0.5, 0.005
"""How long masks may come behind the logits: a part of the time that these took, and what the
system may need to let a thread run at all. Grammars that are known to be slow do not take it."""


class Executed(NamedTuple):
    """A step that was run, with its results."""

    step: ScheduledStep
    verified: Verified
    errors: dict[str, str]
    """Why log-probabilities of a prompt could not be computed, by request id."""
    hidden: NDArray[Any] | None
    """Hidden states ``[num_hidden, hidden]`` of the rows without logits; None if there are none."""
    result: StepResult | None
    """The whole result, valid until the next step; None if it stays on a device."""
    late: frozenset[int] = frozenset()
    """Indices of the samples that drew no token because their grammar mask was not ready."""


class StepRunner(Protocol):
    """Runs scheduled steps and samples their tokens. Not thread-safe."""

    @property
    def in_flight(self) -> bool:
        """Whether it holds a step that it has not returned yet."""
        ...

    def advance(self, step: ScheduledStep | None) -> Executed | None:
        """Accept a step, or None if there is nothing to do; return an executed step, or None."""
        ...


class SerialRunner:
    """Runs a step when it gets it."""

    in_flight = False

    def __init__(
        self,
        executor: Executor,
        constraints: Constraints,
        prompts: PromptReports,
        typical: Typical | None = None,
    ) -> None:
        """``typical``: how drafts are accepted, if not exactly."""
        self._executor = executor
        self._sampler = executor.sampler()
        self._constraints = constraints
        self._prompts = prompts
        self._typical = typical

    def advance(self, step: ScheduledStep | None) -> Executed | None:
        if step is None:
            return None
        began = perf_counter() if self._constraints.active else 0.0
        result = self._executor.run(build_step_input(step))
        masks, late = NO_MASKS
        if self._constraints.active:
            patience = max(_LEAST_PATIENCE_S, _PATIENCE * (perf_counter() - began))
            masks, late = self._constraints.masks(step.samples, patience)
        if step.num_drafted or late:
            verified = verify(self._sampler, result, step, masks, self._typical, late)
        else:
            states = [sequence.sampling_state for sequence in step.samples]
            sampled = self._sampler.sample(result, step.sample_rows, states, masks)
            for i in sampled.particular:
                if i not in sampled.errors:
                    states[i].append(sampled.token_ids[i])
            verified = _one_each(sampled)
        errors: dict[str, str] = {}
        if self._prompts.any:
            wanted = self._prompts.wanted(step)
            reports = [self._report(result, each.rows) for each in wanted]
            errors = self._prompts.add(wanted, reports)
        hidden = None
        if step.num_hidden:  # a device's are fetched when they are read
            assert result.hidden is not None
            hidden = result.hidden[step.num_logits :]
        return Executed(step, verified, errors, hidden, result, late)

    def _report(self, result: StepResult, wanted: PromptRows) -> PromptReport:
        rows = result.logits[wanted.first_row : wanted.first_row + len(wanted.targets)]
        try:
            return self._sampler.prompt_logprobs(rows, wanted.targets, wanted.num_top)
        except RequestError as error:
            return str(error)


class OverlappingRunner:
    """Launches a step when it gets it, and waits for the one before."""

    def __init__(
        self,
        executor: OverlappingExecutor,
        scheduler: Scheduler,
        constraints: Constraints,
        prompts: PromptReports,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._constraints = constraints
        self._prompts = prompts
        self._launched: _Launched | None = None

    @property
    def in_flight(self) -> bool:
        return self._launched is not None

    def advance(self, step: ScheduledStep | None) -> Executed | None:
        before = self._launched
        self._launched = None if step is None else self._launch(step)
        if before is None:
            return None
        outcome = before.launched.wait()
        errors = self._prompts.add(before.wanted, outcome.prompts)
        return Executed(before.step, _one_each(outcome.sampled), errors, outcome.hidden, None)

    def _launch(self, step: ScheduledStep) -> _Launched:
        wanted = self._prompts.wanted(step)
        launched = self._executor.launch(
            build_step_input(step),
            step.sample_rows,
            [sequence.sampling_state for sequence in step.samples],
            [each.rows for each in wanted],
            self._masks(step),
        )
        self._scheduler.launched(step)
        return _Launched(step, launched, wanted)

    def _masks(self, step: ScheduledStep) -> list[TokenMask | None] | None:
        """All of them: who awaits one was not scheduled to draw (``Constraints.settle``)."""
        masks, late = self._constraints.masks(step.samples, 0.0)
        assert not late, "a sequence draws without its mask"
        return masks


class _Launched(NamedTuple):
    step: ScheduledStep
    launched: Launched
    wanted: list[WantedRows]


def _one_each(sampled: Sampled) -> Verified:
    """What was drawn without drafts: a token for every sample."""
    logprobs = {i: [entry] for i, entry in sampled.logprobs.items()}
    return Verified([[token] for token in sampled.token_ids], sampled.errors, logprobs)
