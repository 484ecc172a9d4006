"""The end of a server: asked for by a signal, and put off for requests that are open."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Final

from penstock.server.errors import RETRY_AFTER_S, unavailable
from penstock.server.open_requests import OpenRequests

LAST_WORDS_S: Final = 2.0
"""Seconds for telling streams that the end of the grace period cuts off."""


def stop_signals(guarded: bool = False) -> asyncio.Event:
    """An event of the running loop that the first SIGINT or SIGTERM sets.

    A second one ends the process, at once: whatever hangs must not keep it. But not one that is
    ``guarded``: its guardian does that.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set() and not guarded:
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return stop


async def drain(requests: OpenRequests, grace_s: float, why: str, log: logging.Logger) -> None:
    """Refuse new work and wait for what is open; end and tell what is not done in time."""
    requests.draining = why
    requests.stopping = True
    log.warning("stopping: %d requests are open and have %g s", len(requests), grace_s)
    if await requests.wait_idle(grace_s):
        return
    ended = requests.end_all(unavailable(why, "shutting_down", RETRY_AFTER_S))
    log.warning("the grace is over: %d requests were ended", ended)
    await requests.wait_idle(LAST_WORDS_S)
