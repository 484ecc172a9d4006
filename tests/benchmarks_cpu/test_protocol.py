"""The driver and a worker, with an engine that is made up."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from comparison.process import Worker, WorkerError
from comparison.protocol import (
    Failed,
    Load,
    Loaded,
    Message,
    ProtocolError,
    Quit,
    Ran,
    Request,
    Run,
    Score,
    Scored,
    decode,
    encode,
)

Start = Callable[[], Worker]


def load(model: str) -> Load:
    return Load(model, "int4", threads=2, max_sequences=4, max_length=64, kv_bytes=1 << 20)


@pytest.fixture
def start(fake_engine: Path, tmp_path: Path) -> Start:
    return lambda: Worker([sys.executable, str(fake_engine)], tmp_path / "log.txt")


@pytest.mark.parametrize(
    "message",
    [
        load("a model\nof two lines"),
        Loaded(1.5, {"a": "b"}),
        Run([Request([1, 2], 3), Request([], 1)], clients=2),
        Run([]),
        Ran([[0.25, 0.5], []], 1.0, 0.5, 2.0),
        Score([[1, 2, 3], [4, 5, 6]], 2),
        Scored(3.25),
        Failed('a "reason"'),
        Quit(),
    ],
)
def test_messages_survive_the_wire(message: Message) -> None:
    line = encode(message)
    assert line.count("\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"kind": "run"}', '{"kind": "no"}', '{"kind": "quit", "x": 1}', "x"]
)
def test_what_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        decode(line)


def test_a_run_has_a_time_for_every_token(start: Start) -> None:
    with start() as worker:
        loaded = worker.ask(load("spins"), 30)
        assert isinstance(loaded, Loaded)
        assert loaded.settings == {"isa": "portable", "threads": "2"}
        ran = worker.ask(Run([Request([1], 3), Request([2], 1)]), 30)
    assert isinstance(ran, Ran)
    assert [len(times) for times in ran.times] == [3, 1]
    assert ran.cpu_seconds >= 0.15
    assert ran.seconds >= 0.15
    assert 0 <= ran.other_cpu_seconds <= 2 * ran.seconds * (os.cpu_count() or 1)


def test_too_few_tokens_are_a_failure(start: Start) -> None:
    with start() as worker:
        worker.ask(load("short"), 30)
        with pytest.raises(WorkerError, match="request 0 was asked for 3 tokens and got 2"):
            worker.ask(Run([Request([1], 3)]), 30)


def test_a_failure_names_its_reason_and_leaves_the_worker_alive(start: Start) -> None:
    with start() as worker:
        with pytest.raises(WorkerError, match="RuntimeError: no such model"):
            worker.ask(load("broken"), 30)
        assert isinstance(worker.ask(load("fine"), 30), Loaded)


def test_a_death_names_the_last_thing_it_printed(start: Start) -> None:
    with start() as worker:
        worker.ask(load("dies"), 30)
        with pytest.raises(WorkerError, match=r"ended with code 3 \(out of memory\)"):
            worker.ask(Run([Request([1], 1)]), 30)


def test_a_crash_names_the_signal_and_no_line_of_an_earlier_worker(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "log.txt").write_text("an earlier worker's last line\n")
    with start() as worker:
        worker.ask(load("crashes"), 30)
        with pytest.raises(WorkerError, match=r"ended by SIGFPE \(a library that prints\)"):
            worker.ask(Run([Request([1], 1)]), 30)


def test_a_worker_that_hangs_is_given_up(start: Start) -> None:
    with start() as worker:
        worker.ask(load("hangs"), 30)
        with pytest.raises(WorkerError, match="no answer in 1 s"):
            worker.ask(Run([Request([1], 1)]), 1)
        worker._signal(9)  # it would take the whole patience of close()


def test_a_paused_worker_stands_still_and_goes_on(start: Start) -> None:
    with start() as worker:
        worker.ask(load("fine"), 30)
        worker.pause()
        state = Path(f"/proc/{worker._process.pid}/stat")
        deadline = time.monotonic() + 60
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline
        assert isinstance(worker.ask(Run([Request([1], 1)]), 30), Ran)


def test_what_a_worker_started_ends_with_it(start: Start) -> None:
    with start() as worker:
        worker.ask(load("child"), 30)
        worker.ask(Run([Request([1], 1)]), 30)
        session = worker._process.pid
        assert len(members(session)) == 2
    deadline = time.monotonic() + 60
    while members(session):
        assert time.monotonic() < deadline


def members(session: int) -> list[int]:
    """Processes of a session that run still."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if os.getsid(int(entry.name)) == session and state != "Z":
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
