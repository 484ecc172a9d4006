"""The executor of several ranks that each queue steps on a device of their own: that of rank 0."""

from __future__ import annotations

import weakref
from typing import Any

from penstock.engine.ranks.processes import RankProcesses, given_up_on_error
from penstock.engine.ranks.steps import encoded
from penstock.errors import PenstockError
from penstock.interface.adapters import AdapterMemory
from penstock.interface.blocks import BlockIO
from penstock.interface.executor import Capabilities, Executor, Pending, Sampling, StepOutcome
from penstock.interface.sampler import Sampler
from penstock.interface.step import StepInput
from penstock.interface.tuning import Tunable
from penstock.interface.weights import PackedRegions


class DeviceRanks:
    """Submits each step to every rank at once. Tokens are drawn on the device of rank 0, whose
    logits are whole.

    A step is waited for before the next: others have no tokens but those that the host knows. When
    a rank fails, or none answers for long, the group is given up, which ends what waits on devices
    (``Collective.when_given_up``): the step raises EngineDeadError with the reason, and so does
    every later one. Processes end when the executor is closed, and with the process that made it at
    the latest.
    """

    packed: PackedRegions | None = None
    tunable: Tunable | None = None
    blocks: BlockIO | None = None
    adapters: AdapterMemory | None = None

    def __init__(self, own: Executor, processes: RankProcesses) -> None:
        """``own``: the executor of rank 0; it is closed with this one."""
        self.capabilities = Capabilities(most_logprobs=own.capabilities.most_logprobs)
        self.num_blocks = own.num_blocks
        self.processes = processes
        self._own = own
        self._end = weakref.finalize(self, processes.close)

    @property
    def sampler(self) -> Sampler[Any]:
        return self._own.sampler

    def failure(self) -> PenstockError | None:
        return self.processes.failure(0.0)

    def submit(self, step: StepInput, sampling: Sampling | None = None) -> Pending:
        self.processes.check()
        frame = encoded(step)
        with given_up_on_error(self.processes):
            self.processes.begin_step()
            self.processes.send(frame)
            return _PendingRanks(self._own.submit(step, sampling), self.processes)

    def close(self) -> None:
        self._end()
        self._own.close()


class _PendingRanks:
    """A step that all ranks were told of."""

    def __init__(self, own: Pending, processes: RankProcesses) -> None:
        self._own = own
        self._processes = processes

    def wait(self) -> StepOutcome:
        """Block until rank 0 is done, which is not before it has what others give."""
        with given_up_on_error(self._processes):
            outcome = self._own.wait()
            self._processes.check()  # what was waited for may have ended with the group
        self._processes.end_step()
        return outcome
