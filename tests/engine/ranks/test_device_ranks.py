"""The executor of ranks on devices: what it tells the others, and what becomes of errors."""

from __future__ import annotations

from typing import Any

import pytest
from support.tiny_plans import Chunk, step_of, tokens_of

from penstock.engine.ranks.device_executor import DeviceRanks
from penstock.errors import EngineDeadError
from penstock.interface.executor import Capabilities, Sampling, StepOutcome

STEP = step_of([Chunk(tokens_of(1, 5), 0, 5, [1])])
DEAD = EngineDeadError("the process of rank 1 was ended")


class Processes:
    """The other ranks, of which one may have failed; what is asked of them is noted."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: EngineDeadError | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def failure(self, patience: float) -> EngineDeadError | None:
        return self.error

    def fail(self, why: str) -> None:
        self.calls.append(f"fail: {why}")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


class Own:
    """Rank 0's executor, whose steps do what the test says."""

    num_blocks, sampler = 4, None
    capabilities = Capabilities(2, placeholders=True, most_logprobs=20)

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.refuses: Exception | None = None
        self.fails: Exception | None = None
        self.loses: EngineDeadError | None = None

    def submit(self, step: Any, sampling: Any = None) -> Own:
        self.processes.calls.append("own step")
        if self.refuses is not None:
            raise self.refuses
        return self

    def wait(self) -> StepOutcome:
        self.processes.error = self.loses
        if self.fails is not None:
            raise self.fails
        return StepOutcome()

    def close(self) -> None:
        self.processes.calls.append("own close")


def made() -> tuple[DeviceRanks, Own, Processes]:
    processes: Any = Processes()
    own: Any = Own(processes)
    return DeviceRanks(own, processes), own, processes


def test_others_are_told_before_the_step_is_queued_here() -> None:
    ranks, _, processes = made()
    assert ranks.capabilities == Capabilities(most_logprobs=20)
    pending = ranks.submit(STEP, Sampling())
    assert processes.calls == ["begin_step", "send", "own step"]
    pending.wait()
    assert processes.calls[3:] == ["end_step"]
    assert ranks.failure() is None
    assert (ranks.capabilities.depth, ranks.capabilities.placeholders) == (1, False)
    ranks.close()
    assert processes.calls[4:] == ["close", "own close"]


@pytest.mark.parametrize("fails", [None, RuntimeError("NCCL"), EngineDeadError("the GPU failed")])
def test_another_ranks_end_is_what_a_step_ends_with(fails: Exception | None) -> None:
    """Also where the device is waited for in vain and nothing is raised."""
    ranks, own, processes = made()
    own.fails, own.loses = fails, DEAD
    pending = ranks.submit(STEP)
    with pytest.raises(EngineDeadError) as raised:
        pending.wait()
    assert raised.value is DEAD
    assert processes.calls[-1] == "end_step"
    with pytest.raises(EngineDeadError, match="rank 1"):  # and so does all that follows
        ranks.submit(STEP)


@pytest.mark.parametrize("error", [EngineDeadError("the GPU failed"), ValueError("token id 999")])
def test_an_error_of_rank_0_gives_the_group_up(error: Exception) -> None:
    ranks, own, processes = made()
    own.refuses = error
    with pytest.raises(type(error), match=str(error)):
        ranks.submit(STEP)
    assert processes.calls[-2] == "end_step"
    assert processes.calls[-1].startswith("fail: a step of several ranks was not done: ")
