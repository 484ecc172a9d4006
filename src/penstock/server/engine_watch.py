"""Watches an engine's process: it ends, or hangs and is ended, or something else is to be done."""

from __future__ import annotations

import asyncio

from penstock.errors import PenstockError
from penstock.frontend.async_llm import AsyncLLM

WATCH_S = 0.5


async def watch(
    llm: AsyncLLM, hang_s: float, step_timeout_s: float, asked: asyncio.Event
) -> PenstockError | None:
    """Wait until the engine is dead, and return why; None once ``asked`` is set while it lives.

    An engine that says nothing for ``hang_s`` seconds, or is in one step for ``step_timeout_s``, is
    killed.
    """
    hung = 0  # looks in a row; one alone may be our own process that was stopped
    while True:
        await _look(llm, asked)
        if llm.death is not None:
            return llm.death
        if asked.is_set():
            return None
        silent = llm.process.silent_s > hang_s
        late = llm.process.step_s > step_timeout_s
        hung = hung + 1 if silent or late else 0
        if hung < 3:
            continue
        if silent:
            llm.process.kill(
                f"the engine hung: nothing came from it for {llm.process.silent_s:.0f} s, and it "
                "was killed"
            )
        else:
            llm.process.kill(
                f"the engine hung: one step took more than {llm.process.step_s:.0f} s, and it was "
                "killed"
            )


async def _look(llm: AsyncLLM, asked: asyncio.Event) -> None:
    """Wait for the engine's death, or for ``asked``, as long as looks are apart."""
    awaited = [asyncio.ensure_future(llm.wait_dead()), asyncio.ensure_future(asked.wait())]
    try:
        done, _ = await asyncio.wait(awaited, timeout=WATCH_S, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in awaited:
            each.cancel()
