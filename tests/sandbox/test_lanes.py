"""Lanes: how many may wait, and whose turn it is."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import OverloadedError, UnavailableError
from penstock.sandbox.lanes import Lane, Seat


def entering(lane: Lane, tenant: str) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(lane.enter(tenant))


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def test_too_many_at_once_are_refused_for_now() -> None:
    async def main() -> None:
        lane = Lane(2, 3, "grammars")
        for _ in range(2):
            await lane.enter("")
        waiting = [entering(lane, "") for _ in range(3)]
        await settled()
        with pytest.raises(OverloadedError, match="3 grammars wait"):
            await lane.enter("")
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        last = entering(lane, "")
        await settled()
        assert lane.num_waiting == 3
        for _ in range(3):
            lane.leave("")
        await asyncio.gather(last, *waiting[1:])

    asyncio.run(main())


def test_one_tenant_leaves_room_for_others() -> None:
    async def main() -> None:
        lane = Lane(1, 64, "long texts")
        await lane.enter("a")
        many = [entering(lane, "a") for _ in range(67)]
        await settled()
        assert lane.num_waiting == 48  # alone: all but a quarter
        assert sum(task.done() and task.exception() is not None for task in many) == 19
        others = [entering(lane, "b") for _ in range(16)]
        await settled()
        assert lane.num_waiting == 64
        with pytest.raises(OverloadedError, match="64 long texts wait"):
            await lane.enter("b")
        for _ in range(16):  # seats of both, in turn
            lane.leave("a")
            await settled()
            lane.leave("b")
            await settled()
        assert all(task.done() for task in others)
        assert lane.num_waiting == 32  # all of them of the first
        entering(lane, "b")
        await settled()
        with pytest.raises(OverloadedError, match="of your long texts"):
            await lane.enter("a")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(main())


def test_the_next_is_who_has_least() -> None:
    async def main() -> None:
        lane = Lane(2, 1024, "texts")
        order: list[str] = []

        async def work(tenant: str) -> None:
            await lane.enter(tenant)
            order.append(tenant)

        tasks = [asyncio.ensure_future(work("a")) for _ in range(10)]
        await settled()
        tasks += [asyncio.ensure_future(work(name)) for name in "bbcc"]
        await settled()
        assert order == ["a", "a"]
        for left in range(5):
            lane.leave(order[left])
            await settled()
        assert set(order[2:5]) == {"a", "b", "c"}
        assert set(order[4:7]) == {"a", "b", "c"}
        for task in tasks:
            task.cancel()

    asyncio.run(main())


def test_a_closed_lane_fails_all_who_wait_and_come() -> None:
    async def main() -> None:
        lane = Lane(1, 9, "texts")
        await lane.enter("a")
        waiting = [entering(lane, "a") for _ in range(3)]
        await settled()
        lane.close(UnavailableError("closed"))
        for task in (*waiting, entering(lane, "b")):
            with pytest.raises(UnavailableError, match="closed"):
                await task
        lane.leave("a")

    asyncio.run(main())


def test_a_seat_is_given_back_however_its_job_ends() -> None:
    async def main() -> None:
        first, second = Lane(1, 1, "jobs"), Lane(1, 0, "slow jobs")
        with Seat("a") as seat:
            await seat.move(first)
            await seat.move(second)
            assert second.is_full
            assert not first.is_full
            with Seat("a") as other, pytest.raises(OverloadedError):
                await other.move(second)
        assert not second.is_full

    asyncio.run(main())


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), seats=st.integers(1, 4), most=st.integers(0, 8))
def test_the_books_add_up(seed: int, seats: int, most: int) -> None:
    """Whichever jobs come, leave and are cancelled, no seat is given twice, and none is lost."""
    rng = random.Random(seed)

    async def main() -> None:
        lane = Lane(seats, most, "jobs")
        seated: list[str] = []
        tasks: list[asyncio.Task[None]] = []

        async def job(tenant: str) -> None:
            with Seat(tenant) as seat:
                await seat.move(lane)
                seated.append(tenant)
                try:
                    for _ in range(rng.randrange(5)):
                        await asyncio.sleep(0)
                finally:
                    seated.remove(tenant)

        for _ in range(60):
            tasks.append(asyncio.ensure_future(job(rng.choice("abc"))))
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            if rng.random() < 0.6:
                await asyncio.sleep(0)
            assert len(seated) <= seats
            assert lane.num_waiting <= most
        await asyncio.gather(*tasks, return_exceptions=True)
        assert lane.num_waiting == 0
        for _ in range(seats):
            assert not lane.is_full
            await lane.enter("d")
        assert lane.is_full

    asyncio.run(main())
