"""The executor of several ranks: that of rank 0, which tells the others of each step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.engine.ranks.device_executor import DeviceRanks
from penstock.engine.ranks.processes import RankProcesses, given_up_on_error
from penstock.engine.ranks.steps import encoded
from penstock.errors import PenstockError
from penstock.interface.executor import Executor, OpTime, Profiling, run
from penstock.interface.host_executor import HostExecutor
from penstock.interface.sampler import Sampler
from penstock.interface.step import StepInput, StepResult

R = TypeVar("R")


class RankedExecutor(HostExecutor):
    """Runs each step on every rank at once. What is drawn is drawn from rank 0's logits, which are
    whole.

    A rank that fails takes the group along: the step raises EngineDeadError with the reason, and so
    does every later one. After a step that all refuse as malformed, or that was interrupted, ranks
    may be at different ones, so that the group is given up, too. Processes end when the executor is
    closed, and with the process that made it at the latest.
    """

    def __init__(self, own: Executor, processes: RankProcesses) -> None:
        """``own``: the executor of rank 0, on the host; it is closed with this one."""
        self.num_blocks = own.num_blocks
        self.capabilities = own.capabilities
        self.processes = processes
        self._own = own
        self._end = weakref.finalize(self, processes.close)

    @property
    def sampler(self) -> Sampler[Any]:
        return self._own.sampler

    def failure(self) -> PenstockError | None:
        return self.processes.failure(0.0)

    def run(self, step: StepInput) -> StepResult:
        return self._by_all(step, self._run_own)

    def _run_own(self, step: StepInput) -> StepResult:
        return run(self._own, step)

    def _by_all(self, step: StepInput, by_own: Callable[[StepInput], R]) -> R:
        """Have the other ranks run the step, and rank 0 in its own way."""
        self.processes.check()
        frame = encoded(step)
        with given_up_on_error(self.processes):
            self.processes.send(frame)
            return by_own(step)

    def close(self) -> None:
        self._end()
        self._own.close()


class ProfilingRanks(RankedExecutor):
    """Ranks of which rank 0 can time its ops, and how long it waits for the others."""

    def __init__(self, own: Executor, processes: RankProcesses) -> None:
        assert isinstance(own, Profiling)
        super().__init__(own, processes)
        self._profiling: Profiling = own

    def profile(self, step: StepInput) -> tuple[StepResult, Sequence[OpTime]]:
        return self._by_all(step, self._profiling.profile)


def ranked(own: Executor, processes: RankProcesses) -> RankedExecutor | DeviceRanks:
    """Return the executor of all ranks, of which ``own`` is rank 0's; it can do what that can, but
    for steps ahead of each other."""
    if not isinstance(own, HostExecutor):
        return DeviceRanks(own, processes)
    return (ProfilingRanks if isinstance(own, Profiling) else RankedExecutor)(own, processes)
