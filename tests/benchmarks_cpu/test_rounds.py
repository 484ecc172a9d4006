"""Rounds over engines that are made up: order, failures, memory."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from comparison.artifacts import Shape
from comparison.cases import Case, Metric
from comparison.contender import GIGABYTE, Contender, Limits, make_room
from comparison.peers import Peer
from comparison.results import Comparison, EngineRecord, case_record, read, write
from comparison.rounds import run_rounds, turned
from penstock.bench.machine import Speeds, describe_machine

LIMITS = Limits((0,), 4, 64, kv_bytes=0, clients=2, run_seconds=30)
ONE = Case("one", "one stream", ((8, 4),), (Metric.DECODE,))
FOUR = Case("four", "batch of 4", ((8, 4),) * 4, (Metric.OUTPUT,))
SERVED = Case("http", "HTTP", ((8, 4),) * 2, (Metric.OUTPUT,), clients=2)


@dataclass
class Fake(Contender):
    script: Path = field(default_factory=Path)

    def command(self) -> list[str]:
        return [sys.executable, str(self.script)]


@dataclass
class Field:
    """Contenders and the comparison that they run in."""

    contenders: list[Contender]
    comparison: Comparison
    said: list[str] = field(default_factory=list)
    saved: int = 0

    def run(self, cases: list[Case], rounds: int, deadline: float | None = None) -> int:
        def save(comparison: Comparison) -> None:
            self.saved += 1

        return run_rounds(
            self.contenders,
            cases,
            self.comparison,
            rounds=rounds,
            ids=range(300, 400),
            seed=0,
            deadline=deadline,
            say=self.said.append,
            save=save,
        )

    def order(self, number: int) -> list[tuple[str, str]]:
        return [(s.case, s.engine) for s in self.comparison.samples if s.round == number]


def enter(script: Path, tmp_path: Path, *engines: str, served: bool = False) -> Field:
    """Engines by the behaviour that the fake has under that name."""
    shape = Shape("tiny", tmp_path, tmp_path)
    comparison = Comparison(
        date="2026-01-02",
        command="run.py",
        shape="tiny",
        machine=describe_machine(Speeds(), 1),
        cases=[case_record(case) for case in (ONE, FOUR)],
    )
    contenders: list[Contender] = []
    for name in engines:
        peer = Peer(name, {"int4": name}, "fake", "fake_server")
        contenders.append(Fake(peer, "int4", False, shape, LIMITS, script=script))
        if served:
            contenders.append(Fake(peer, "int4", True, shape, LIMITS, script=script))
        comparison.engines.append(
            EngineRecord(engine=name, precision="int4", versions={}, settings={}, artifact_bytes=0)
        )
    return Field(contenders, comparison)


def test_cases_alternate_and_each_round_begins_with_another(
    fake_engine: Path, tmp_path: Path
) -> None:
    entered = enter(fake_engine, tmp_path, "a", "b")
    assert entered.run([ONE, FOUR], 2) == 2
    assert entered.order(0) == [("one", "a"), ("one", "b"), ("four", "a"), ("four", "b")]
    assert entered.order(1) == [("one", "b"), ("one", "a"), ("four", "b"), ("four", "a")]
    assert entered.saved == 8  # after every case, or a run that is ended would lose its round
    assert entered.comparison.absences == []
    assert [record.settings for record in entered.comparison.engines] == [
        {"isa": "portable", "threads": "1"}
    ] * 2
    assert all(contender.worker is None for contender in entered.contenders)


def test_every_round_begins_with_another(fake_engine: Path, tmp_path: Path) -> None:
    entered = enter(fake_engine, tmp_path, "a", "b", "c")
    order = ["".join(c.peer.name for c in turned(entered.contenders, n)) for n in range(5)]
    assert order == ["abc", "bca", "cab", "abc", "bca"]


def test_a_served_case_goes_to_servers_alone(fake_engine: Path, tmp_path: Path) -> None:
    entered = enter(fake_engine, tmp_path, "a", served=True)
    entered.run([ONE, SERVED], 1)
    assert entered.order(0) == [("one", "a"), ("http", "a")]
    settings = entered.comparison.engines[0].settings
    own = {"isa": "portable", "threads": "1"}
    assert settings == own | {f"server {name}": value for name, value in own.items()}


def test_a_failed_case_is_named_and_the_others_go_on(fake_engine: Path, tmp_path: Path) -> None:
    entered = enter(fake_engine, tmp_path, "fails on 4", "b")
    entered.run([FOUR, ONE], 2)
    assert entered.order(0) == [("four", "b"), ("one", "fails on 4"), ("one", "b")]
    (absence,) = entered.comparison.absences
    assert (absence.engine, absence.case) == ("fails on 4", "four")
    assert "four are too many" in absence.reason


def test_a_model_that_does_not_load_is_tried_once(fake_engine: Path, tmp_path: Path) -> None:
    entered = enter(fake_engine, tmp_path, "broken", "b")
    entered.run([ONE, FOUR], 2)
    (absence,) = entered.comparison.absences
    assert (absence.engine, absence.case) == ("broken", None)
    assert {sample.engine for sample in entered.comparison.samples} == {"b"}


def test_no_round_begins_that_would_not_end_in_time(fake_engine: Path, tmp_path: Path) -> None:
    entered = enter(fake_engine, tmp_path, "a")
    assert entered.run([ONE], 5, deadline=time.monotonic()) == 1
    assert "1 of 5 rounds" in entered.said[-1]


@pytest.mark.slow
def test_a_precision_ends_before_the_next_is_loaded(fake_engine: Path, tmp_path: Path) -> None:
    entered = enter(fake_engine, tmp_path, "a")
    shape = entered.contenders[0].shape
    peer = Peer("a", {"int4": "a", "int8": "a"}, "fake", "fake_server")
    entered.contenders.append(Fake(peer, "int8", False, shape, LIMITS, script=fake_engine))
    entered.comparison.engines.append(
        EngineRecord(engine="a", precision="int8", versions={}, settings={}, artifact_bytes=0)
    )
    assert entered.run([ONE], 2) == 4
    samples = entered.comparison.samples
    assert [(s.precision, s.round) for s in samples] == [
        *(("int4", 0), ("int4", 1), ("int8", 0), ("int8", 1)),
    ]
    assert entered.run([ONE], 3, deadline=time.monotonic()) == 2  # the first round of each


def test_room_is_made_from_the_least_recently_run(tmp_path: Path, fake_engine: Path) -> None:
    entered = enter(fake_engine, tmp_path, "a", "b", "c")
    a, b, c = entered.contenders
    for contender in (a, b):
        contender.run(ONE, [], [])
    free = iter([0, GIGABYTE])
    make_room(entered.contenders, c, [b, a], lambda: next(free))
    assert b.worker is None
    assert a.worker is not None
    make_room(entered.contenders, a, [a], lambda: 0)
    assert a.worker is not None
    a.unload()


def test_results_survive_the_file(fake_engine: Path, tmp_path: Path) -> None:
    entered = enter(fake_engine, tmp_path, "a", "broken")
    entered.run([ONE], 1)
    path = tmp_path / "results" / "x.json"
    write(entered.comparison, path)
    assert read(path) == entered.comparison
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_an_engine_nobody_announced_is_a_mistake(fake_engine: Path, tmp_path: Path) -> None:
    entered = enter(fake_engine, tmp_path, "a")
    entered.comparison.engines.clear()
    with pytest.raises(AssertionError, match="never announced"):
        entered.run([ONE], 1)
    assert entered.contenders[0].worker is None
