"""Submits scheduled steps to the executor, and takes in their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import msgspec
from numpy.typing import NDArray

from penstock.engine.constraints import Constraints
from penstock.engine.prompt_logprobs import PromptLogprobsTracker, WantedRows
from penstock.engine.step_builder import build_step_input
from penstock.interface.executor import Executor, Pending, PromptRows, Sampling, StepOutcome
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.mask import NO_MASKS, StepMasks
from penstock.interface.sampler import Sampled
from penstock.scheduler.output import ScheduledStep, SlotMove
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState
from penstock.speculate.typical import Typical
from penstock.speculate.verify import Verified, verify

_PATIENCE, _LEAST_PATIENCE_S = 0.5, 0.005
"""How long masks may come behind the logits: a part of the time that these took, and what the
system may need to let a thread run at all. Grammars that are known to be slow do not take it."""


class Executed(msgspec.Struct, frozen=True):
    """A step that was run, with its results."""

    step: ScheduledStep
    verified: Verified
    errors: dict[str, str]
    """Why log-probabilities of a prompt could not be computed, by request id."""
    hidden: NDArray[Any] | None
    """Hidden states ``[num_hidden, hidden]`` of the rows without logits; None if there are none."""
    features: NDArray[Any] | None
    """What a head that drafts is given of the step's rows; None if it was not asked for."""
    late: frozenset[int]
    """Indices of the samples that drew no token because their grammar mask was not ready."""


class _InFlight(msgspec.Struct, frozen=True):
    step: ScheduledStep
    pending: Pending
    wanted: Sequence[WantedRows]
    masks: _LateMasks | None
    verifies: bool
    """Whether its tokens are drawn here."""


class StepRunner:
    """Runs scheduled steps on an executor, working ahead where it can. Not thread-safe.

    With an executor of depth 1, a step is taken in as soon as it is submitted. With a deeper one it
    stays in flight until as many as may be outstanding are, until there is none to submit, or until
    it is asked for (:meth:`take_in`). A step with drafts must be taken in before the next is
    scheduled: what follows depends on how many of them are accepted. Its tokens are drawn here, by
    ``verify``, and so are those of a step whose masks may come late.
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        constraints: Constraints,
        prompts: PromptLogprobsTracker,
        typical: Typical | None = None,
        caches: bool = True,
    ) -> None:
        """``typical``: how drafts are accepted, if not exactly. ``caches``: whether the model has
        keys and values."""
        self._executor = executor
        self._sampler = executor.sampler
        self._depth = executor.capabilities.depth
        self._works_ahead = self._depth > 1
        self._scheduler = scheduler
        self._constraints = constraints
        self._prompts = prompts
        self._typical = typical
        self._caches = caches
        self._in_flight: deque[_InFlight] = deque()

    @property
    def in_flight(self) -> bool:
        """Whether it holds a step that was not taken in yet."""
        return bool(self._in_flight)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def can_go_on(self) -> bool:
        """Whether the next step may be scheduled before those in flight are taken in."""
        return not any(each.verifies for each in self._in_flight)

    @property
    def slot_moves(self) -> list[SlotMove]:
        """The moves of the steps that were not taken in yet."""
        return [move for each in self._in_flight for move in each.step.slot_moves]

    def advance(
        self, step: ScheduledStep | None, features: bool = False, may_be_late: bool = False
    ) -> Executed | None:
        """Submit a step, if there is one; return one that was run, if it is time to take one in.

        ``features``: ``Executed.features`` are wanted of this step. ``may_be_late``: its masks may
        not be ready, so that an executor without ``Capabilities.late_masks`` cannot draw from it.
        """
        if step is not None:
            self._in_flight.append(self._submit(step, features, may_be_late))
            if len(self._in_flight) < self._depth:
                return None
        return self.take_in()

    def take_in(self) -> Executed | None:
        """Wait for the first step in flight, if there is one."""
        return self._take_in(self._in_flight.popleft()) if self._in_flight else None

    def _submit(self, step: ScheduledStep, features: bool, may_be_late: bool) -> _InFlight:
        masks = None
        if self._constraints.active:
            masks = _LateMasks(self._constraints, step.samples)
        wanted: Sequence[WantedRows] = ()
        prompts: Sequence[PromptRows] = ()
        if self._prompts.any:
            wanted = self._prompts.wanted(step)
            prompts = [each.rows for each in wanted]
        step_input = build_step_input(step, caches=self._caches)
        for slot, adapter in step.adapter_loads:
            assert self._executor.adapters is not None, "the plan has room for no adapters"
            self._executor.adapters.write(slot, adapter)
        verifies = step.num_drafted > 0 or may_be_late
        if verifies:
            sampling = Sampling(prompts=prompts, features=features, logits=True)
        else:
            states = step.sampling_states
            sampling = Sampling(step.sample_rows, states, masks, prompts, features)
        pending = self._executor.submit(step_input, sampling)
        if self._works_ahead and not verifies:
            self._scheduler.submitted(step)
        return _InFlight(step, pending, wanted, masks, verifies)

    def _take_in(self, before: _InFlight) -> Executed:
        step, wanted = before.step, before.wanted
        outcome = before.pending.wait()
        if before.verifies:
            verified, late = self._verified(step, outcome, before.masks)
        else:
            verified, late = _one_each(outcome), outcome.late
        errors = self._prompts.add(wanted, outcome.prompts) if wanted else {}
        return Executed(step, verified, errors, outcome.hidden, outcome.features, late)

    def _verified(
        self, step: ScheduledStep, outcome: StepOutcome, masks: _LateMasks | None
    ) -> tuple[Verified, frozenset[int]]:
        assert outcome.result is not None, "the logits were asked for"
        allowed, late = NO_MASKS if masks is None else masks.take()
        verified = verify(self._sampler, outcome.result, step, allowed, self._typical, late)
        return verified, late


class _LateMasks:
    """The masks of a step's samples, which may come a little later than its logits.

    For an executor without ``Capabilities.late_masks`` all are there: a sequence whose mask is late
    was not scheduled to draw (``Constraints.wait_for_all``).
    """

    def __init__(self, constraints: Constraints, samples: list[SequenceState]) -> None:
        self._constraints = constraints
        self._samples = samples
        self._began = perf_counter()

    def take(self) -> StepMasks:
        patience = max(_LEAST_PATIENCE_S, _PATIENCE * (perf_counter() - self._began))
        return self._constraints.masks(self._samples, patience)


def _one_each(outcome: StepOutcome) -> Verified:
    """What was drawn without drafts: a token for every sample that is not late."""
    sampled: Sampled = outcome.sampled
    logprobs: dict[int, list[TokenLogprobs]] = {}
    if sampled.logprobs:
        logprobs = {i: [entry] for i, entry in sampled.logprobs.items()}
    tokens = [[token] for token in sampled.token_ids]
    for i in outcome.late:
        tokens[i] = []
    return Verified(tokens, sampled.errors, logprobs)
