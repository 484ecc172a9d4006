"""Sequences that run only if all surely come to their ends."""

from __future__ import annotations

import random

import pytest
from support.fake_model import Windows
from support.scheduler_loop import check_complete, make_loop, request

from penstock.interface.messages import Tenant
from penstock.scheduler.sequence import SequenceState

ALL: Windows = (None,)


def drawn(generator: random.Random, count: int) -> list[SequenceState]:
    """Requests, some for several answers, of which some end early."""
    shared = [generator.randrange(50) for _ in range(8)]
    return [
        request(
            f"r{i}",
            shared[: generator.choice((0, 4, 8))]
            + [generator.randrange(50) for _ in range(generator.randrange(1, 8))],
            seed=generator.randrange(2**32),
            max_tokens=generator.randrange(1, 50),
            n=generator.choice((1, 1, 1, 2)),
            ignore_eos=generator.random() < 0.8,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("windows", "blocks"), [(ALL, 40), ((None, 10), 60)], ids=str)
def test_none_is_preempted(ahead: bool, windows: Windows, blocks: int) -> None:
    preempted = []
    for surely in (False, True):
        loop = make_loop(blocks, seqs=12, ahead=ahead, windows=windows, surely=surely)
        leaders = drawn(random.Random(1), 20)
        for leader in leaders:
            loop.scheduler.add(leader)
        loop.run()
        check_complete(loop, leaders)
        preempted.append(loop.scheduler.stats().preemptions)
    assert preempted[0] > preempted[1] == 0


def test_what_needs_the_whole_cache_runs_alone() -> None:
    loop = make_loop(num_blocks=10, surely=True)
    leaders = [request(f"r{i}", [i] * 20, max_tokens=21) for i in range(3)]  # ten blocks each
    leaders.append(request("several", [5] * 10, max_tokens=10, n=3))
    for leader in leaders:
        loop.scheduler.add(leader)
    most = 0
    while loop.step() is not None:
        most = max(most, len({each.request_id for each in loop.scheduler.running}))
    check_complete(loop, leaders)
    assert most == 1


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("blocks", "seqs"), [(40, 12), (200, 4)], ids=["blocks", "places"])
def test_nor_for_another_tenant(ahead: bool, blocks: int, seqs: int) -> None:
    """Who holds too much is let finish; then the other is first."""
    loop = make_loop(blocks, seqs, ahead=ahead, surely=True)
    leaders = [  # ten blocks each to their ends
        request(f"a{i}", [i] * 8, max_tokens=33 - 2 * i, tenant=Tenant("a")) for i in range(6)
    ]
    for leader in leaders:
        loop.scheduler.add(leader)
    for _ in range(5):
        loop.step()
    assert len(loop.scheduler.running) == 4
    leaders.append(request("b", [9] * 30, max_tokens=9, tenant=Tenant("b")))
    loop.scheduler.add(leaders[-1])
    started = [each.request_id for each in loop.scheduler.running]
    while loop.step() is not None:
        started += [each.request_id for each in loop.scheduler.running]
    check_complete(loop, leaders)
    assert loop.scheduler.stats().preemptions == 0
    assert list(dict.fromkeys(started))[4:] == ["b", "a4", "a5"]
