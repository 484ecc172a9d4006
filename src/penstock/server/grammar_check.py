"""Whether grammars that requests bring can be used, found out beside the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.errors import OverloadedError, RequestError
from penstock.grammar.cache import GrammarCache
from penstock.grammar.spec import GrammarSpec

NUM_THREADS = 2
"""A grammar may take seconds of a processor before it is refused: bad ones must neither take all
processors nor, one after the other, keep a good one waiting."""
MAX_WAITING = 256
"""Grammars that were not looked at yet; more are refused for now."""


@dataclass(frozen=True)
class _Found:
    fault: str | None


class GrammarCheck:
    """Remembers what it found. Belongs to one event loop; starts nothing before it is asked."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._cache: GrammarCache[_Found] = GrammarCache()
        self._waiting = 0

    async def check(self, spec: GrammarSpec, param: str) -> None:
        """Raise RequestError, naming the field ``param``, if ``spec`` cannot be compiled.

        Raises OverloadedError where too many wait to be looked at.
        """
        found = self._cache.get(spec) or await self._look_at(spec)
        if found.fault is not None:
            raise RequestError(f"{param}: {found.fault}", param)

    async def _look_at(self, spec: GrammarSpec) -> _Found:
        if self._waiting >= MAX_WAITING:
            raise OverloadedError(
                f"{self._waiting} grammars wait to be looked at, and no more may; send the request "
                "again later"
            )
        if self._threads is None:
            self._threads = ThreadPoolExecutor(NUM_THREADS, "penstock-grammar-check")
        self._waiting += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, _find, spec)
        finally:
            self._waiting -= 1
        self._cache.put(spec, found)
        return found


def _find(spec: GrammarSpec) -> _Found:
    from penstock.grammar.compile import check  # only now: it loads llguidance

    try:
        check(spec)
    except RequestError as error:
        return _Found(str(error))
    return _Found(None)
