"""Ranks that cannot be what rank 0 takes them for, or do not start."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.config import EngineConfig
from penstock.engine.loader import open_model, plan_engine
from penstock.engine.ranks.identity import RankIdentity
from penstock.engine.ranks.processes import RankProcesses
from penstock.engine.ranks.wire import JoinGroup, Measured
from penstock.errors import ConfigError, EngineDeadError
from penstock.interface.rank_segment import RankSegment


def join_of(config: EngineConfig, processes: RankProcesses, **changes: Any) -> Any:
    files = open_model(config)
    engine_plan = plan_engine(config, files)
    identity = RankIdentity.of(engine_plan, files, 1)
    identity = msgspec.structs.replace(identity, **changes)

    def join(rank: int, columns: int) -> JoinGroup:
        segment = processes.segment
        return JoinGroup(
            config,
            engine_plan.config,
            identity,
            engine_plan.taps,
            rank,
            segment.fd,
            segment.slot_bytes,
            columns,
            None,
            1,
            "never",
        )

    return join


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "others"}, r"rank 1: .* since the weight files \(.*, and others of rank 0\)"),
        ({"penstock": "0.0", "plan": "x"}, r"the version of Penstock .* and the plan of oper"),
    ],
)
def test_a_rank_of_another_model_is_refused(changes: dict[str, str], message: str) -> None:
    config = EngineConfig(backend="reference", tensor_parallel=2)
    processes = RankProcesses(RankSegment(2, 4096), 2)
    try:
        processes.start(join_of(config, processes, **changes))
        processes.send(Measured({}, {}))
        with pytest.raises(ConfigError, match=message):
            processes.wait_loaded()
    finally:
        processes.close()


def test_a_process_that_does_not_start() -> None:
    config = EngineConfig(backend="reference", tensor_parallel=2)
    processes = RankProcesses(RankSegment(2, 4096), 2, module="penstock.no_such_module")
    try:
        processes.start(join_of(config, processes))
        with pytest.raises(EngineDeadError, match=r"rank 1 .* ended with exit code 1; see its"):
            processes.wait_loaded()
    finally:
        processes.close()


def test_a_step_that_does_not_end_gives_the_group_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.ranks.processes.WAIT_S", 0.1)
    config = EngineConfig(backend="reference", tensor_parallel=2)
    processes = RankProcesses(RankSegment(2, 4096), 2)
    given_up: list[bool] = []
    processes.collective.when_given_up(lambda: given_up.append(True))
    try:
        processes.start(join_of(config, processes))
        processes.begin_step()
        processes.end_step()  # in time
        assert processes.failure(1.0) is None
        processes.begin_step()
        failure = processes.failure(10.0)
        assert isinstance(failure, EngineDeadError)
        assert "the ranks have not done a step within 0 seconds" in str(failure)
    finally:
        processes.close()
    assert given_up
