"""Ranks of a sharded plan, as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from penstock.interface.collective import ThreadRank, thread_ranks

R = TypeVar("R")


def in_ranks(world: int, work: Callable[[ThreadRank], R]) -> list[R]:
    """What each rank's ``work`` returns, in a thread for each."""
    results: dict[int, R] = {}
    failed: list[BaseException] = []

    def run(rank: ThreadRank) -> None:
        try:
            results[rank.rank] = work(rank)
        except BaseException as error:
            failed.append(error)
            rank.fail()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in thread_ranks(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failed:
        raise failed[0]
    assert len(results) == world, f"only ranks {sorted(results)} of {world} returned within 60 s"
    return [results[i] for i in range(world)]
