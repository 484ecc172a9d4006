"""The thread pool: where its workers run, how they wait, and how they share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.needs import Need, lacking
from support.waiting import PATIENCE_S, until

ALLOWED = sorted(os.sched_getaffinity(0))


@pytest.fixture
def make_pool(one_module: Any) -> Iterator[Any]:
    made = []

    def make(threads: int, cpus: tuple[int, ...] = (), crowded: bool = True) -> Any:
        made.append(one_module.Pool(threads=threads, cpus=list(cpus), crowded=crowded))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, which can be forked and bound at will."""
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=60,
    )


def asleep(task: Path) -> bool:
    """Whether the kernel has a thread wait for something, here until the pool wakes it."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "S"


# --- where workers run --------------------------------------------------------------------------


def test_each_worker_runs_on_its_cpu_and_the_caller_only_inside(make_pool: Any) -> None:
    if len(ALLOWED) < 2:
        lacking(Need.CPUS, "two")
    order = (ALLOWED[1], ALLOWED[0])
    assert make_pool(2, order).masks() == [[order[0]], [order[1]]]
    assert sorted(os.sched_getaffinity(0)) == ALLOWED


def test_without_cpus_workers_run_anywhere(make_pool: Any) -> None:
    assert make_pool(3).masks() == [ALLOWED] * 3


def test_a_cpu_that_is_not_allowed_leaves_its_worker_unbound(make_pool: Any) -> None:
    absent = max(ALLOWED) + 900  # beyond any machine's
    assert make_pool(2, (absent, absent + 1)).masks() == [ALLOWED] * 2


def test_as_many_cpus_as_threads_or_none(make_pool: Any) -> None:
    with pytest.raises(ValueError, match="a cpu for every thread"):
        make_pool(2, (0,))


def test_a_mask_that_shrinks_later_has_the_last_word() -> None:
    if len(ALLOWED) < 2:
        lacking(Need.CPUS, "two")
    script = f"""
import os
from penstock.backends.cpu import native
pool = native.load().Pool(threads=2, cpus={ALLOWED[:2]}, crowded=False)
assert pool.masks() == [[{ALLOWED[0]}], [{ALLOWED[1]}]]
for task in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(task), {{{ALLOWED[1]}}})
assert pool.masks() == [[{ALLOWED[1]}]] * 2, pool.masks()
assert len(pool.wait_for(0, 0.01)) == 2
pool.close()
assert os.sched_getaffinity(0) == {{{ALLOWED[1]}}}
"""
    run = run_script(script)
    assert run.returncode == 0, run.stderr


# --- how they wait --------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("crowded", [False, True])
def test_those_who_wait_for_a_late_worker_sleep(make_pool: Any, late: int, crowded: bool) -> None:
    """A stopped thread costs the others its absence, not their processor time."""
    pool = make_pool(3, crowded=crowded)
    # A spinner's processor time grows with the wait. What else may cost a worker some, once in
    # a while, does not come every time.
    until(lambda: max(pool.wait_for(late, 0.5)) < 0.2, PATIENCE_S, "they sleep")


def test_a_parked_pool_costs_nothing_and_wakes(make_pool: Any) -> None:
    before = os.listdir("/proc/self/task")
    pool = make_pool(4, crowded=False)
    pool.masks()
    workers = [task for task in Path("/proc/self/task").iterdir() if task.name not in before]
    assert len(workers) == 3  # the caller is the fourth
    for worker in workers:
        until(lambda worker=worker: asleep(worker), PATIENCE_S, "parked")
    assert len(pool.masks()) == 4


@pytest.mark.parametrize("idle", [0.0, 0.1])
def test_a_pool_ends_while_its_workers_spin_or_are_parked(one_module: Any, idle: float) -> None:
    for _ in range(20 if not idle else 2):
        before = set(os.listdir("/proc/self/task"))
        pool = one_module.Pool(threads=5, cpus=[], crowded=False)
        if idle:
            pool.masks()
            time.sleep(idle)
        # Other threads of the process may come and go meanwhile.
        new = set(os.listdir("/proc/self/task")) - before
        assert len(new) >= 4
        pool.close()
        # A thread that was joined is listed until the kernel has taken it away.
        until(
            lambda new=new: len(new & set(os.listdir("/proc/self/task"))) <= len(new) - 4,
            PATIENCE_S,
            "the workers ended",
        )
        with pytest.raises(RuntimeError, match="closed"):
            pool.masks()


def test_after_a_fork_the_pool_says_so_and_can_be_closed() -> None:
    script = """
import os, sys
from penstock.backends.cpu import native
pool = native.load().Pool(threads=3, cpus=[], crowded=False)
pool.masks()
child = os.fork()
if child == 0:
    try:
        pool.masks()
    except RuntimeError as error:
        print(error, flush=True)
        pool.close()
        other = native.load().Pool(threads=2, cpus=[], crowded=False)
        other.masks()
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(pool.masks()) == 3
pool.close()
"""
    run = run_script(script)
    assert run.returncode == 0, run.stderr
    assert "forked after the engine was loaded" in run.stdout


# --- how they share -------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("least", [1, 4, 1000])
def test_every_task_of_every_phase_is_done_once(make_pool: Any, threads: int, least: int) -> None:
    phases = [0, 1, 5, 64, 3000, 2, 0, 511] * 20
    for _ in range(3):  # the counters are never reset
        for tasks, takers in zip(
            phases, make_pool(threads).take_turns(phases, least, 0, 0.0), strict=True
        ):
            assert len(takers) == tasks
            assert all(0 <= worker < threads for worker in takers)


def test_others_do_what_a_late_worker_does_not_come_to(make_pool: Any) -> None:
    tasks = 4000
    *_, takers = make_pool(2).take_turns([10, tasks], 4, 0, 1.0)
    # Of its share of half it has the one piece, an eighth of that, in which it was held up.
    assert takers.count(0) < tasks / 4
    assert takers.count(1) > tasks / 2


# --- where memory lies ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("page", [4096, 2 << 20])
@pytest.mark.parametrize("size", [1, 4096, 5 << 20, (100 << 20) + 77])
def test_pages_go_to_whom_most_of_them_belongs(
    one_module: Any, size: int, count: int, page: int
) -> None:
    ranges = [one_module.page_range(size, i, count, page) for i in range(count)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    for i, (begin, end) in enumerate(ranges):
        assert begin <= end
        if i:
            assert begin == ranges[i - 1][1]
            assert begin % page == 0 or begin == size
            assert abs(begin - size * i / count) <= page / 2 or begin == size


@pytest.mark.parametrize(("threads", "tasks"), [(1, 2**32 - 1), (2, 2**25 + 3), (2, 2**32 - 1)])
def test_phases_of_very_many_tasks_are_taken_whole_and_once(
    make_pool: Any, threads: int, tasks: int
) -> None:
    """A step of a million tokens has more than 2^24 heads a thread."""
    pool = make_pool(threads)
    for _ in range(3):  # phases that follow each other
        end = 0
        for begin, following in sorted(pool.pieces(tasks, 16)):
            assert begin == end
            assert following > begin
            end = following
        assert end == tasks


@pytest.mark.parametrize(("tasks", "least"), [(2**32, 16), (-1, 16), (5, 0), (5, -1)])
def test_phases_that_cannot_be_counted_are_refused(make_pool: Any, tasks: int, least: int) -> None:
    with pytest.raises(ValueError, match="no such phase"):
        make_pool(2).pieces(tasks, least)
    if tasks < 2**32:
        with pytest.raises(ValueError, match="task"):
            make_pool(2).take_turns([tasks], least, 0, 0.0)


SHARING = """
import os
from penstock.backends.cpu import native

def waited(pool):
    \"\"\"What the caller spends until the other arrives, at least of some times.\"\"\"
    pool.wait_for(1, 0.0)
    return min(pool.wait_for(1, 0.005)[0] for _ in range(10))

def pool(cpus):
    return native.load().Pool(threads=2, cpus=cpus, crowded=False)

apart = pool({ALLOWED[:2]})
print(waited(apart))
apart.close()
os.sched_setaffinity(0, {{ALLOWED[0]}})
together = pool([])
print(waited(together))
together.close()
"""


def test_a_waiter_that_shares_its_cpu_sleeps_at_once() -> None:
    """It would spin in the way of the one that it waits for, at every barrier of a step."""
    if len(ALLOWED) < 2:
        lacking(Need.CPUS, "two")
    script = SHARING.replace("{ALLOWED[:2]}", repr(ALLOWED[:2]))
    done = run_script(script.replace("{{ALLOWED[0]}}", f"{{{ALLOWED[0]}}}"))
    assert done.returncode == 0, done.stderr
    apart, together = map(float, done.stdout.split())
    assert together < apart / 2
