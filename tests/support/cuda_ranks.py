"""Ranks of the cuda backend in one process, on one device: threads that take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from penstock.backends.cuda.bind import assemble
from penstock.backends.cuda.capability import capability_of
from penstock.backends.cuda.executor import CudaExecutor
from penstock.backends.fills import fill_all
from penstock.interface.collective import ThreadRank
from penstock.interface.executor import Limits
from penstock.interface.weights import WeightSource
from penstock.plan.plan import Plan
from support.ranks import in_ranks

R = TypeVar("R")


class TurnsGroup:
    """``backends.cuda.group.Group`` of threads, one of which runs until it waits for the others:
    Triton's interpreter runs one kernel at a time. It cannot be captured in a graph."""

    def __init__(self, inner: ThreadRank, turn: threading.Lock) -> None:
        """``turn`` is held by the rank that runs."""
        self.rank, self.world = inner.rank, inner.world
        self._inner, self._turn = inner, turn

    def all_gather(self, out: Tensor, part: Tensor) -> None:
        parts = self._met(part)
        for each, own in zip(out.view(self.world, -1), parts, strict=True):
            each.copy_(own)

    def gather_to_first(self, out: Tensor | None, part: Tensor) -> None:
        parts = self._met(part)
        assert (out is None) == (self.rank > 0)
        if out is not None:
            for each, own in zip(out.view(self.world, -1), parts, strict=True):
                each.copy_(own)

    def same_rows(self, rows: Sequence[int]) -> tuple[int, ...]:
        parts = self._met(torch.tensor(rows))
        return tuple(sorted({int(each) for part in parts for each in part}))

    def close(self) -> None:
        pass

    def _met(self, part: Tensor) -> list[Tensor]:
        own: Any = part.cpu().numpy()
        self._turn.release()
        try:
            parts = self._inner.all_gather(own)
        finally:
            self._turn.acquire()
        return [torch.from_numpy(each) for each in parts]


def on_ranks(
    plans: Sequence[Plan],
    weights: Callable[[Plan], WeightSource],
    limits: Limits,
    device: torch.device,
    work: Callable[[CudaExecutor], R],
) -> list[R]:
    """What ``work`` returns of the executor of each rank's plan, all of which run at once."""
    turn = threading.Lock()

    def of_rank(rank: ThreadRank) -> R:
        with turn:
            plan, group = plans[rank.rank], TurnsGroup(rank, turn)
            executor, fills = assemble(plan, limits, device, capability_of(device), group)
            fill_all(fills, weights(plan))
            try:
                return work(executor)
            finally:
                executor.close()

    return in_ranks(len(plans), of_rank)
