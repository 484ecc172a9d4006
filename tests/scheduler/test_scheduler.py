"""A step of the scheduler: what it computes, and what it refuses to take in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.scheduler_loop import check_complete, make_loop, request

import penstock


def test_one_request() -> None:
    loop = make_loop()
    leader = request("a", list(range(10, 40)))
    loop.scheduler.add(leader)
    loop.run()
    check_complete(loop, [leader])
    assert loop.steps == 2 + 4  # 30 tokens of prompt at 16 a step; the second gives a token
    stats = loop.scheduler.stats()
    assert (stats.steps, stats.tokens_computed, stats.tokens_generated) == (6, 34, 5)
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


def test_update_refuses_samples_that_do_not_belong_to_the_step() -> None:
    loop = make_loop()
    loop.scheduler.add(request("a", [1, 2]))
    step = loop.scheduler.schedule()
    assert step is not None
    with pytest.raises(ValueError, match="2 samples for 1"):
        loop.scheduler.update(step, [[1], [2]])


def test_a_waste_count_sees_only_the_unfilled_part_of_last_blocks() -> None:
    loop = make_loop(seqs=4, budget=32)
    for i in range(3):
        loop.scheduler.add(request(f"r{i}", [i] * (5 + i), max_tokens=8))
    loop.step()
    stats = loop.scheduler.stats()
    assert (stats.kv_slots_allocated, stats.kv_slots_filled) == (24, 18)


def test_no_array_library_is_imported() -> None:
    code = "import sys, penstock.scheduler.scheduler; sys.exit('numpy' in sys.modules)"
    source = str(Path(penstock.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}).returncode == 0
