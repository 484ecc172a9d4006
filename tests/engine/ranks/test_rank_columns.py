"""Columns that go by sockets from rank to rank."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.waiting import PATIENCE_S

from penstock.engine.ranks.columns import SocketRank


def group(world: int) -> list[SocketRank]:
    pairs = [socket.socketpair() for _ in range(1, world)]
    hub = SocketRank(0, world, [ours for ours, _ in pairs])
    return [hub, *(SocketRank(rank, world, [its]) for rank, (_, its) in enumerate(pairs, 1))]


def test_every_rank_gets_the_columns_of_all() -> None:
    """Unequal numbers of them, without rows, and more than a socket holds."""
    ranks, rng = group(3), np.random.default_rng(1)
    sent = [
        [rng.random((rows, cols + 2 * rank), np.float32) for rank in range(3)]
        for rows, cols in ((3, 5), (0, 4), (1, 1), (400, 900))
    ]
    got: dict[int, list[Sequence[NDArray[Any]]]] = {}

    def work(rank: SocketRank) -> None:
        got[rank.rank] = [rank.all_gather(parts[rank.rank]) for parts in sent]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for rank in ranks:
        for parts, expected in zip(got[rank.rank], sent, strict=True):
            for part, its in zip(parts, expected, strict=True):
                np.testing.assert_array_equal(part, its)
        rank.close()


@pytest.mark.parametrize("waiting", [0, 1])
def test_who_waits_for_a_rank_that_ends_fails(waiting: int) -> None:
    ranks = group(2)
    ranks[1 - waiting].close()
    with pytest.raises(RuntimeError, match=f"rank {waiting} waits for ranks that have failed"):
        ranks[waiting].all_gather(np.zeros((2, 3), np.float32))


def test_a_group_that_is_given_up_ends_waits() -> None:
    ranks = group(2)
    timer = threading.Timer(0.1, ranks[0].give_up)
    timer.start()
    with pytest.raises(RuntimeError, match="rank 0 waits"):
        ranks[0].all_gather(np.zeros((2, 3), np.float32))
    timer.join()


def test_who_waits_in_another_way_is_told_that_the_group_is_given_up() -> None:
    rank, _ = group(2)
    told: list[str] = []
    rank.when_given_up(lambda: told.append("before"))
    assert told == []
    rank.give_up()
    rank.when_given_up(lambda: told.append("after"))
    assert told == ["before", "after"]


def test_columns_of_another_step_are_refused() -> None:
    ranks = group(2)

    def later() -> None:
        with pytest.raises(RuntimeError, match="rank 1 waits"):
            ranks[1].all_gather(np.zeros((3, 3)))

    other = threading.Thread(target=later)
    other.start()
    with pytest.raises(RuntimeError, match="rank 0 waits"):
        ranks[0].all_gather(np.zeros((2, 3)))
    ranks[0].close()
    other.join(PATIENCE_S)
