"""The executor of a pipeline: that of the last stage, behind all others."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.engine.ranks.steps import encoded
from penstock.engine.stages.columns import own_step
from penstock.engine.stages.links import StageLinks, named_error
from penstock.errors import EngineDeadError, PenstockError
from penstock.interface.executor import (
    Capabilities,
    Executor,
    OpTime,
    Profiling,
    Sampling,
    StepOutcome,
    failure_of,
)
from penstock.interface.mask import StepMasks
from penstock.interface.sampler import Sampler
from penstock.interface.step import StepInput, StepResult
from penstock.peers.channel import Payload
from penstock.plan.stages import Stage

R = TypeVar("R")


class StagedExecutor:
    """Sends each step to the first stage, and runs it on its own, the last, when it is waited for:
    what the stages before hand on has come by then, or is waited for.

    As many steps may be outstanding as there are stages, or one alone where drafts are verified:
    what follows depends on how many are accepted. A stage that fails takes the pipeline
    along: whoever waits gets the error with which it did, and so does every later call. What is
    drawn is drawn here, from the last stage's logits. Processes end when the executor is closed,
    and with the process that made it at the latest.
    """

    packed = None
    tunable = None
    adapters = None
    blocks = None

    def __init__(
        self, own: Executor, stage: Stage, links: StageLinks, *, verifies: bool = False
    ) -> None:
        """``own``: the executor of the last stage, which is closed with this one. ``verifies``:
        whether steps have drafts."""
        self.num_blocks = own.num_blocks
        self.capabilities = Capabilities(depth=1 if verifies else stage.number + 1)
        self.links = links
        self._own = own
        self._stage = stage
        self._name = f"stage {stage.number}"
        self._number = 0
        self._end = weakref.finalize(self, links.close)

    @property
    def sampler(self) -> Sampler[Any]:
        return self._own.sampler

    def submit(self, step: StepInput, sampling: Sampling | None = None) -> StagedStep:
        number, self._number = self._number, self._number + 1
        self.links.send(number, encoded(step))
        if sampling is not None and sampling.masks is not None:
            # All are there, and sequences that end meanwhile take theirs along.
            taken = _Taken(sampling.masks.take())
            sampling = msgspec.structs.replace(sampling, masks=taken)
        return StagedStep(self, number, step, sampling)

    def finish(self, number: int, step: StepInput, sampling: Sampling | None) -> StepOutcome:
        """Run the last stage of a step, and draw."""
        with self._given_up_on_error():
            payload, _ = self.links.wait(number)
            return self._run_own(step, payload, sampling)

    @contextlib.contextmanager
    def _given_up_on_error(self) -> Iterator[None]:
        """Give the pipeline up after any error of a step: stages may be at different ones."""
        try:
            yield
        except PenstockError as error:
            self.links.fail(error)
            raise
        except BaseException as error:
            why = f"a step of several stages was not done: {error!r}; start again"
            self.links.fail(EngineDeadError(why))
            raise

    def _run_own(self, step: StepInput, payload: Payload, sampling: Sampling | None) -> StepOutcome:
        own = own_step(self._stage, step, payload)
        return self._by_own(lambda: self._own.submit(own, sampling).wait())

    def _by_own(self, work: Callable[[], R]) -> R:
        """Do something on the last stage, whose errors name it."""
        try:
            return work()
        except PenstockError as error:
            raise named_error(error, self._name) from error

    def failure(self) -> PenstockError | None:
        own = failure_of(self._own)
        return self.links.failure(0.0) if own is None else named_error(own, self._name)

    def close(self) -> None:
        self._end()
        self._own.close()


class ProfilingStages(StagedExecutor):
    """Stages that can time their ops, one step at a time."""

    def __init__(self, own: Executor, stage: Stage, links: StageLinks, **options: Any) -> None:
        assert isinstance(own, Profiling)
        super().__init__(own, stage, links, **options)
        self._profiling: Profiling = own

    def profile(self, step: StepInput) -> tuple[StepResult, Sequence[OpTime]]:
        """Run a step, and return what it gives and what each op of all stages took, in their
        order; where ranks share a stage, those of its rank 0."""
        number, self._number = self._number, self._number + 1
        with self._given_up_on_error():
            self.links.send(number, encoded(step), is_timed=True)
            payload, before = self.links.wait(number)
            own = own_step(self._stage, step, payload)
            result, ops = self._by_own(lambda: self._profiling.profile(own))
            return result, [*before, *ops]


def staged(own: Executor, stage: Stage, links: StageLinks, *, verifies: bool) -> StagedExecutor:
    """Return the executor of all stages, of which ``own`` is the last one's. ``verifies``: whether
    steps have drafts."""
    kind = ProfilingStages if isinstance(own, Profiling) else StagedExecutor
    return kind(own, stage, links, verifies=verifies)


class StagedStep:
    """``interface.executor.Pending`` of a step that is on its way through the stages."""

    def __init__(
        self, owner: StagedExecutor, number: int, step: StepInput, sampling: Sampling | None
    ) -> None:
        self._owner = owner
        self._number = number
        self._step = step
        self._sampling = sampling

    def wait(self) -> StepOutcome:
        return self._owner.finish(self._number, self._step, self._sampling)


class _Taken(NamedTuple):
    """A MaskSource of masks that were taken."""

    masks: StepMasks

    def take(self) -> StepMasks:
        return self.masks
