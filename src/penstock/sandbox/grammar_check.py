"""Whether grammars that requests bring can be used, found out in worker processes."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import RequestError
from penstock.grammar.cache import GrammarCache
from penstock.grammar.spec import GrammarSpec
from penstock.sandbox.jobs import Checked, CheckGrammar, Exceeded
from penstock.sandbox.pool import WorkerPool


@dataclass(frozen=True)
class _Found:
    fault: str | None


class GrammarCheck:
    """Remembers what it found. Belongs to one event loop; starts nothing before it is asked."""

    def __init__(self, workers: WorkerPool) -> None:
        self._workers = workers
        self._cache: GrammarCache[_Found] = GrammarCache()

    async def check(self, spec: GrammarSpec, param: str) -> None:
        """Raise RequestError, naming the field ``param``, if ``spec`` cannot be compiled.

        Raises OverloadedError where too many wait to be looked at.
        """
        found = self._cache.get(spec) or await self._look_at(spec)
        if found.fault is not None:
            raise RequestError(f"{param}: {found.fault}", param)

    async def _look_at(self, spec: GrammarSpec) -> _Found:
        try:
            answer = await self._workers.run(CheckGrammar.of(spec))
            assert isinstance(answer, Checked)
            found = _Found(answer.fault)
        except Exceeded as error:
            found = _Found(str(error))
            if error.cause == "memory":  # the machine may have been short of it
                return found
        self._cache.put(spec, found)
        return found
