"""Ranks of a sharded plan on native executors: threads of this process, which share memory as
processes would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor
from penstock.interface.collective import RankSeat, ThreadRank
from penstock.interface.executor import Limits
from penstock.interface.rank_segment import RankSegment
from penstock.interface.weights import WeightSource
from penstock.plan.fuse import fuse
from penstock.plan.gathers import slot_bytes
from penstock.plan.plan import Plan
from penstock.plan.shard import shard
from support.ranks import in_ranks

R = TypeVar("R")


@contextmanager
def segment_of(own: Plan, limits: Limits, world: int) -> Iterator[RankSegment]:
    """Memory for ranks, of whose plans ``own`` is one."""
    segment = RankSegment(world, slot_bytes(own, limits.max_tokens, limits.max_selected_rows))
    try:
        yield segment
    finally:
        segment.close()


def on_native_ranks(
    plan: Plan,
    weights: Callable[[Plan], WeightSource],
    limits: Limits,
    world: int,
    work: Callable[[CpuExecutor, RankSegment], R],
) -> list[R]:
    """What ``work`` returns of each rank's executor of the primitive ``plan``, fused."""
    owns = [fuse(shard(plan, rank, world)) for rank in range(world)]
    with segment_of(owns[0], limits, world) as segment:

        def of_rank(rank: ThreadRank) -> R:
            own = owns[rank.rank]
            seat = RankSeat(rank, segment.fd, segment.slot_bytes, world * limits.threads)
            executor = bind(own, weights(own), replace(limits, cpus=()), seat=seat)
            try:
                return work(executor, segment)
            except BaseException:
                segment.give_up()
                raise
            finally:
                executor.close()

        return in_ranks(world, of_rank)
