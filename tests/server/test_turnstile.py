"""The turnstile: who is inside, who is held, and in which order they are let in."""

from __future__ import annotations

import asyncio

import pytest
from support.waiting import PATIENCE_S

from penstock.errors import OverloadedError
from penstock.frontend.open_sequences import OpenSequences
from penstock.interface.messages import Tenant
from penstock.server.turnstile import Entry, Turnstile

A, B = Tenant("a"), Tenant("b")


async def holding(turnstile: Turnstile, tenant: Tenant = A, n: int = 1) -> asyncio.Task[Entry]:
    """A request that is held by now."""
    task = asyncio.ensure_future(turnstile.hold(tenant, n))
    await asyncio.sleep(0)
    assert not task.done()
    return task


def test_it_is_empty_when_the_last_has_left() -> None:
    async def main() -> None:
        turnstile = Turnstile(OpenSequences(8))
        await asyncio.wait_for(turnstile.emptied(), PATIENCE_S)  # nothing to wait for
        first, second = turnstile.enter(), turnstile.enter()
        emptied = asyncio.ensure_future(turnstile.emptied())
        first.close()
        first.close()
        await asyncio.sleep(0)
        assert not emptied.done()
        second.close()
        await emptied

    asyncio.run(main())


def test_one_that_comes_in_the_same_moment_is_waited_for() -> None:
    async def main() -> None:
        turnstile = Turnstile(OpenSequences(8))
        first = turnstile.enter()
        emptied = asyncio.ensure_future(turnstile.emptied())
        await asyncio.sleep(0)
        first.close()
        second = turnstile.enter()  # before whoever waits has run
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not emptied.done()
        second.close()
        await emptied

    asyncio.run(main())


def test_while_it_is_closed_requests_are_held_in_order() -> None:
    async def main() -> None:
        sequences = OpenSequences(8)
        turnstile = Turnstile(sequences)
        turnstile.close()
        order: list[int] = []
        held = [await holding(turnstile, n=i + 1) for i in range(3)]
        for i, task in enumerate(held):
            task.add_done_callback(lambda _, i=i: order.append(i))
        assert (turnstile.waiting, sequences.count) == (3, 6)
        turnstile.open()
        # Let in at once, though none of them has run yet.
        waiting = asyncio.ensure_future(turnstile.emptied())
        entries = await asyncio.gather(*held)
        assert order == [0, 1, 2]
        assert turnstile.waiting == 0
        assert turnstile.total_held == 3
        assert turnstile.longest_held_s == max(entry.held_s for entry in entries) > 0
        assert sequences.count == 6  # until their sequences open
        for entry in entries:
            assert not waiting.done()
            entry.close()
        assert sequences.count == 0
        await waiting

    asyncio.run(main())


def test_one_for_which_it_opens_before_it_waits_is_let_in() -> None:
    """Its caller has seen it closed, and its task runs only after that was over."""

    async def main() -> None:
        sequences = OpenSequences(8)
        turnstile = Turnstile(sequences)
        turnstile.close()
        late = asyncio.ensure_future(turnstile.hold(A, 3))
        turnstile.open()
        entry = await asyncio.wait_for(late, PATIENCE_S)
        assert (turnstile.waiting, turnstile.total_held, sequences.count) == (0, 0, 3)
        emptied = asyncio.ensure_future(turnstile.emptied())
        await asyncio.sleep(0)
        assert not emptied.done()
        entry.close()
        await emptied
        assert sequences.count == 0

    asyncio.run(main())


@pytest.mark.parametrize("late", [False, True])
def test_one_that_leaves_while_it_is_held_costs_nothing(late: bool) -> None:
    """``late``: in the moment in which it would have been let in."""

    async def main() -> None:
        sequences = OpenSequences(8)
        turnstile = Turnstile(sequences)
        turnstile.close()
        leaving, staying = await holding(turnstile), await holding(turnstile)
        if late:
            turnstile.open()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert leaving.cancelled()
        turnstile.open()
        entry = await staying
        assert sequences.count == 1
        entry.close()
        await asyncio.wait_for(turnstile.emptied(), PATIENCE_S)
        assert sequences.count == turnstile.waiting == 0
        assert turnstile.total_held == 2

    asyncio.run(main())


def test_so_many_are_held_as_may_be_open() -> None:
    async def main() -> None:
        sequences = OpenSequences(4)
        sequences.add(A, 1)  # is still running
        turnstile = Turnstile(sequences)
        turnstile.close()
        held = [await holding(turnstile), await holding(turnstile, n=2)]
        with pytest.raises(OverloadedError, match="4 sequences are running and waiting"):
            await turnstile.hold(A, 1)
        held.append(await holding(turnstile, B))  # has its share, as ever
        turnstile.open()
        for entry in await asyncio.gather(*held):
            entry.close()
        assert sequences.count == 1

    asyncio.run(main())


def test_a_request_for_more_than_may_be_open_is_held_with_as_many_places() -> None:
    async def main() -> None:
        sequences = OpenSequences(4)
        turnstile = Turnstile(sequences)
        turnstile.close()
        task = await holding(turnstile, n=100)
        assert sequences.count == 4
        turnstile.open()
        (await task).close()
        assert sequences.count == 0

    asyncio.run(main())


def test_figures_are_those_since_it_was_closed_last() -> None:
    async def main() -> None:
        turnstile = Turnstile(OpenSequences(4))
        assert turnstile.is_open
        assert turnstile.closed_s == 0
        turnstile.close()
        task = await holding(turnstile)
        await asyncio.sleep(0.01)
        assert turnstile.closed_s > 0
        turnstile.open()
        (await task).close()
        assert (turnstile.total_held, turnstile.closed_s) == (1, 0)
        turnstile.close()
        assert (turnstile.total_held, turnstile.longest_held_s) == (0, 0.0)

    asyncio.run(main())
