"""Threads whose owners take turns."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import thread_time

import pytest
from support.waiting import PATIENCE_S

from penstock.grammar.threads import SLOW_NICE, Bell, Workers


class Done:
    """What was done, in order, and a way to wait for it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.bell = Bell()

    def job(self, name: str, seconds: float = 0.0) -> Callable[[], None]:
        def work() -> None:
            end = thread_time() + seconds
            while thread_time() < end:
                pass
            self.names.append(name)

        return work

    def wait(self, count: int) -> None:
        assert self.bell.wait(lambda: len(self.names) == count, PATIENCE_S)


def held(workers: Workers, owner: str) -> threading.Event:
    """Keeps a thread busy until the event is set."""
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go.wait(PATIENCE_S)

    workers.submit([(owner, work)])
    assert begun.wait(PATIENCE_S)
    return go


def test_many_jobs_of_one_are_not_before_anothers() -> None:
    done = Done()
    workers = Workers("test", 1, bell=done.bell)
    go = held(workers, "x")
    workers.submit([("many", done.job(f"many {i}", 0.002)) for i in range(20)])
    workers.submit([("one", done.job("one"))])
    go.set()
    done.wait(21)
    assert done.names.index("one") <= 1
    assert [n for n in done.names if n != "one"] == [f"many {i}" for i in range(20)]
    workers.close()


def test_slow_jobs_of_one_are_less_often() -> None:
    """Who has had less processor time is next; who comes late has no credit."""
    done = Done()
    workers = Workers("test", 1, bell=done.bell)
    go = held(workers, "x")
    workers.submit([("slow", done.job("slow", 0.01)) for _ in range(10)])
    workers.submit([("quick", done.job("quick", 0.002)) for _ in range(10)])
    go.set()
    done.wait(20)
    assert done.names[:11].count("slow") <= 4
    workers.close()


def test_one_job_at_a_time_is_no_way_around() -> None:
    """Who sends the next job when the last one is done gets the share of one with a backlog."""
    done = Done()
    workers = Workers("test", 1, bell=done.bell)
    go = held(workers, "x")
    single = done.job("single", 0.02)

    def backlog() -> None:
        if done.names[-1:] == ["single"]:  # its owner has nothing queued now
            workers.submit([("single", single)])
        done.job("many", 0.001)()

    workers.submit([("single", single)])
    workers.submit([("many", backlog) for _ in range(120)])
    go.set()
    assert done.bell.wait(lambda: done.names.count("many") == 120, PATIENCE_S)
    workers.close()
    while done.names[-1] == "single":
        done.names.pop()
    assert 2 <= done.names.count("single") <= 9, "of 120 ms, every 20th"


def test_nothing_is_left_of_owners_that_are_done() -> None:
    done = Done()
    workers = Workers("test", 2, bell=done.bell)
    for i in range(30):
        workers.submit([(f"{i}", done.job("quick"))])
    done.wait(30)
    assert done.bell.wait(lambda: not workers._lines and not len(workers._served), PATIENCE_S)
    workers._served.check_integrity()
    workers.close()


class Panic(BaseException):
    """A panic of a library in Rust is such an exception."""


def test_a_job_that_raises_keeps_nobody_from_the_threads() -> None:
    done = Done()
    workers = Workers("test", 1, most_of_one=1, bell=done.bell)

    def fails() -> None:
        raise Panic

    for _ in range(3):
        workers.submit([("a", fails), ("a", done.job("a"))])
    done.wait(3)
    assert done.bell.wait(lambda: workers._working == 0, PATIENCE_S)
    assert not workers._lines
    workers.submit([("a", done.job("a"))])
    done.wait(4)
    workers.close()


def test_a_queued_job_can_be_withdrawn() -> None:
    done = Done()
    workers = Workers("test", 1, bell=done.bell)
    go = held(workers, "x")
    first, second = done.job("first"), done.job("second")
    workers.submit([("a", first), ("a", second), ("b", done.job("b"))])
    assert workers.withdraw("a", first)
    assert not workers.withdraw("a", first)
    assert not workers.withdraw("nobody", first)
    workers._served.check_integrity()
    go.set()
    done.wait(2)
    assert sorted(done.names) == ["b", "second"]
    assert not workers.withdraw("a", second)
    workers.close()
    assert not workers._lines


def test_an_owner_has_no_more_threads_than_it_may() -> None:
    done = Done()
    workers = Workers("test", 2, most_of_one=1, bell=done.bell)
    go = held(workers, "a")
    workers.submit([("a", done.job("a"))])
    workers.submit([("b", done.job("b"))])
    done.wait(1)
    assert done.names == ["b"], "a has its thread already"
    go.set()
    done.wait(2)
    workers.close()


@pytest.mark.parametrize("nice", [0, SLOW_NICE])
def test_a_lower_priority_is_of_these_threads_alone(nice: int) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    found: list[int] = []
    done = Done()
    workers = Workers("test", 1, nice=nice, bell=done.bell)

    def look() -> None:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    workers.submit([("a", look), ("a", done.job("a"))])
    done.wait(1)
    assert found == [min(own + nice, 19)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
    workers.close()


def test_closing_forgets_what_waits_and_waits_for_what_runs() -> None:
    done = Done()
    workers = Workers("test", 1)
    go = held(workers, "x")
    workers.submit([("a", done.job("a"))])
    closing = threading.Thread(target=workers.close)
    closing.start()
    while "a" in workers._lines:
        assert closing.is_alive()
    go.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert done.names == []


def test_a_bell_that_nobody_rings_is_waited_for_no_longer_than_asked() -> None:
    assert not Bell().wait(lambda: False, 0.01)
    assert Bell().wait(lambda: True, 0.0)
