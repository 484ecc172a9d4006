"""An engine of ``fake_core.py`` in a process of its own, and a listener that keeps what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from penstock.config import EngineConfig
from penstock.engine.ipc.process import EngineProcess
from penstock.engine.ipc.spawn import EngineChild
from penstock.engine.ipc.wire import Loading, Ready, Refused
from penstock.errors import PenstockError
from penstock.interface.messages import EngineRequest, FinishReason, SequenceUpdate
from penstock.sampling.params import SamplingParams
from support.waiting import PATIENCE_S

"""Seconds for what takes milliseconds, on a machine that is slow and busy with other work."""


def request(name: str, prompt: list[int], **params: Any) -> EngineRequest:
    salt = params.pop("salt", "")
    return EngineRequest(
        request_id=name,
        prompt_token_ids=prompt,
        params=SamplingParams(**params),
        cache_salt=salt,
    )


class Recorder:
    """A listener that keeps everything and wakes those who wait for a condition."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.finished: dict[tuple[str, int], FinishReason] = {}
        self.refusals: list[Refused] = []
        self.batches: list[int] = []
        self.tokenizer_path: str | None = None
        self.loads: list[Loading] = []
        self.deaths: list[PenstockError] = []
        self._changed = asyncio.Event()

    def located(self, tokenizer_path: str) -> None:
        self.tokenizer_path = tokenizer_path

    def loading(self, now: Loading) -> None:
        self.loads.append(now)

    def updated(self, updates: list[SequenceUpdate]) -> None:
        self.batches.append(len(updates))
        for update in updates:
            key = (update.request_id, update.index)
            self.tokens.setdefault(key, []).extend(update.token_ids)
            if update.finish_reason is not None:
                self.finished[key] = update.finish_reason
        self._changed.set()

    def refused(self, refused: Refused) -> None:
        self.refusals.append(refused)
        self._changed.set()

    def died(self, error: PenstockError) -> None:
        self.deaths.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def engine(
    core: str = "support.fake_core:load", step_ms: int = 0
) -> AsyncIterator[tuple[EngineProcess, Recorder, Ready]]:
    recorder = Recorder()
    child = EngineChild.spawn(EngineConfig(seed=step_ms), core)
    process = await EngineProcess.connect(child, recorder)
    try:
        yield process, recorder, await process.ready(PATIENCE_S)
    finally:
        await process.aclose()
        assert child.process.returncode is not None


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 4 * PATIENCE_S))
