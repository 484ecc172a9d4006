"""Checking in worker processes whether the grammars of requests can be used."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.errors import RequestError
from penstock.grammar.cache import GrammarCache
from penstock.grammar.spec import GrammarSpec
from penstock.sandbox.jobs import Checked, CheckGrammar, Exceeded
from penstock.sandbox.pool import WorkerPool


@dataclass(frozen=True)
class _Found:
    fault: str | None


@dataclass
class _Looking:
    """A check in progress, shared by all requests of one tenant for the same grammar."""

    task: asyncio.Task[_Found]
    num_waiting: int = 0


class GrammarCheck:
    """Checks grammars and caches the results, except where a worker ended for want of memory or for
    reasons other than the grammar. Belongs to one event loop; starts no process before the first
    check."""

    def __init__(self, workers: WorkerPool) -> None:
        self._workers = workers
        self._cache: GrammarCache[_Found] = GrammarCache()
        self._looking: dict[tuple[str, GrammarSpec], _Looking] = {}

    async def check(self, spec: GrammarSpec, param: str, tenant: str = "") -> None:
        """Raise RequestError, naming the field ``param``, if ``spec`` cannot be compiled.

        Raises OverloadedError if too many checks wait, and UnavailableError if workers are lost.
        """
        found = self._cache.get(spec) or await self._shared(spec, tenant)
        if found.fault is not None:
            raise RequestError(f"{param}: {found.fault}", param)

    async def _shared(self, spec: GrammarSpec, tenant: str) -> _Found:
        key = tenant, spec
        looking = self._looking.get(key)
        if looking is None:
            look = self._look_at(spec, tenant)
            looking = _Looking(asyncio.get_running_loop().create_task(look))
            self._looking[key] = looking
        looking.num_waiting += 1
        try:
            return await asyncio.shield(looking.task)
        finally:
            looking.num_waiting -= 1
            if looking.num_waiting == 0:
                looking.task.cancel()  # all have left, if it is not done
            over = looking.num_waiting == 0 or looking.task.done()
            if over and self._looking.get(key) is looking:
                del self._looking[key]

    async def _look_at(self, spec: GrammarSpec, tenant: str) -> _Found:
        try:
            answer = await self._workers.run(CheckGrammar.of(spec), tenant)
            assert isinstance(answer, Checked)
            found = _Found(answer.fault)
        except Exceeded as error:
            found = _Found(str(error))
            if error.cause == "memory":  # the machine may have been short of it
                return found
        self._cache.put(spec, found)
        return found
