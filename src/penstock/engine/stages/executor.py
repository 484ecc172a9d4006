"""The executor of a pipeline: that of the last stage, behind all others."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import msgspec

from penstock.engine.ranks.steps import encoded
from penstock.engine.stages.columns import own_step
from penstock.engine.stages.links import StageLinks
from penstock.interface.executor import Capabilities, Executor, Sampling, StepOutcome
from penstock.interface.mask import StepMasks
from penstock.interface.sampler import Sampler
from penstock.interface.step import StepInput
from penstock.plan.stages import Stage


class StagedExecutor:
    """Sends each step to the first stage, and runs it on its own, the last, when it is waited for:
    what the stages before hand on has come by then, or is waited for.

    As many steps may be outstanding as there are stages. A stage that fails takes the pipeline
    along: whoever waits gets the error with which it did, and so does every later call. What is
    drawn is drawn here, from the last stage's logits. Processes end when the executor is closed,
    and with the process that made it at the latest.
    """

    packed = None
    tunable = None
    blocks = None

    def __init__(self, own: Executor, stage: Stage, links: StageLinks) -> None:
        """``own``: the executor of the last stage, which is closed with this one."""
        self.num_blocks = own.num_blocks
        self.capabilities = Capabilities(depth=stage.number + 1)
        self.links = links
        self._own = own
        self._stage = stage
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
        try:
            columns = self.links.wait(number)
            return self._own.submit(own_step(self._stage, step, columns), sampling).wait()
        except BaseException as error:
            self.links.fail(f"a step of several stages was not done: {error!r}; start again")
            raise

    def close(self) -> None:
        self._end()
        self._own.close()


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
